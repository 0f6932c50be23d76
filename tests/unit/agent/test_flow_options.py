# SPDX-License-Identifier: Apache-2.0
"""How much room the tables of flows get, and the times for which flows are kept."""

import os
from dataclasses import replace

import pytest

from ebpflb.agent.dataplane import flows_wanted
from ebpflb.config.settings import load_settings
from ebpflb.dataplane.flows.settings import FlowRecords, flow_records
from ebpflb.dataplane.flows.timeouts import Timeouts, timeouts
from ebpflb.dataplane.layout.capacity import Sizes, sizes_for
from ebpflb.dataplane.layout.enums import FlowEvent

SETTINGS = load_settings({"node-name": "a", "cgroup-root": "/"}, {})


def test_flows_have_what_is_built_in_unless_more_is_wanted():
    assert sizes_for((), flows=0) == sizes_for((), flows=10) == Sizes()
    sizes = sizes_for((), flows=200_000)
    assert (sizes.conntrack, sizes.ct_short) == (400_000, 200_000)


@pytest.mark.parametrize(
    ("per_core", "least", "expected"),
    [
        pytest.param(0, 0, 0, id="built in"),
        pytest.param(1000, 0, 8000, id="by CPUs"),
        pytest.param(1000, 9000, 9000, id="at least"),
        pytest.param(1_000_000, 0, 1_048_576, id="at most"),
    ],
)
def test_the_room_for_flows_follows_kube_proxys_options(
    monkeypatch: pytest.MonkeyPatch, per_core: int, least: int, expected: int
):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    settings = replace(SETTINGS, conntrack_max_per_core=per_core, conntrack_min=least)
    assert flows_wanted(settings) == expected


def test_each_timeout_is_that_of_kube_proxys_option():
    settings = replace(
        SETTINGS,
        conntrack_tcp_timeout_established=100.5,
        conntrack_tcp_timeout_close_wait=20,
        conntrack_udp_timeout=3,
        conntrack_udp_timeout_stream=4,
    )
    assert timeouts(settings) == Timeouts(101, 20, 3, 4)


def test_without_a_timeout_the_built_in_one_counts():
    assert timeouts(SETTINGS) == Timeouts()
    settings = replace(
        SETTINGS, conntrack_tcp_timeout_established=50, conntrack_tcp_timeout_close_wait=0
    )
    assert timeouts(settings) == Timeouts(tcp_established=50, tcp_close_wait=50)


def test_the_programs_are_told_which_records_to_make():
    assert flow_records(SETTINGS) == FlowRecords()
    settings = replace(SETTINGS, flow_events=("start", "dropped"), flow_sample=10, flow_rate=0)
    wanted = frozenset({FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_DROPPED})
    assert flow_records(settings) == FlowRecords(wanted, 10, 0)
    assert not flow_records(replace(SETTINGS, flow_events=())).events
