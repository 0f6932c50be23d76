# SPDX-License-Identifier: Apache-2.0
"""Sizes of the flow tables, timeouts of flows, and their maintenance."""

import logging
import os
import time
from dataclasses import replace
from typing import Literal

import pytest

from ebpflb.agent.dataplane.flow_tables import crowded_tables, room_for_flows
from ebpflb.agent.dataplane.upkeep import Upkeep
from ebpflb.config.settings import Settings, load_settings
from ebpflb.dataplane.flows.closed_sockets import ClosedSockets
from ebpflb.dataplane.flows.settings import write_settings
from ebpflb.dataplane.flows.timeouts import Timeouts, timeouts
from ebpflb.dataplane.flows.unknown_connections import UnknownConnections
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.capacity import FlowRoom, Sizes, flow_room, sizes_for
from ebpflb.dataplane.layout.enums import FlowEvent, Hook, SettingFlag
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings, LbTuple
from ebpflb.errors import ProbeError
from tests.memory_maps import memory_maps

SETTINGS = load_settings({"node-name": "a", "cgroup-root": "/"}, {})


GIB = 1 << 30


def unknown_connections() -> UnknownConnections:
    return UnknownConnections(is_beside=False, rules=lambda: "")


def test_each_flow_has_two_entries():
    assert sizes_for((), FlowRoom(10, 10)) == sizes_for(()) == Sizes()
    sizes = sizes_for((), FlowRoom(200_000, 100_000, 50_000))
    assert (sizes.conntrack, sizes.ct_short, sizes.sockets) == (400_000, 50_000, 100_000)


@pytest.mark.parametrize(
    ("per_core", "least", "expected"),
    [
        pytest.param(0, 0, 65_536, id="built in"),
        pytest.param(32_768, 131_072, 262_144, id="by CPUs"),
        pytest.param(1000, 90_000, 90_000, id="at least"),
        pytest.param(1_000_000, 0, 4_194_304, id="at most"),
    ],
)
def test_the_room_for_flows_follows_kube_proxys_options(
    monkeypatch: pytest.MonkeyPatch, per_core: int, least: int, expected: int
):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 64 * GIB >> 12, "SC_PAGE_SIZE": 4096}.get)
    settings = replace(SETTINGS, conntrack_max_per_core=per_core, conntrack_min=least)
    assert room_for_flows(settings).established == expected


def test_without_options_there_is_room_for_as_many_flows_as_with_kube_proxy(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 64 * GIB >> 12, "SC_PAGE_SIZE": 4096}.get)
    for cpus, flows in ((1, 131_072), (4, 131_072), (5, 163_840), (16, 524_288)):
        monkeypatch.setattr(os, "cpu_count", lambda cpus=cpus: cpus)
        assert room_for_flows(SETTINGS).established == flows


@pytest.mark.parametrize(
    ("flows", "memory", "expected"),
    [
        pytest.param(131_072, GIB // 4, (65_536, 65_536), id="never less"),
        pytest.param(131_072, GIB, (123_361, 65_536), id="a sixteenth of a small memory"),
        pytest.param(131_072, 8 * GIB, (131_072, 65_536), id="as wanted"),
        pytest.param(524_288, 16 * GIB, (524_288, 131_072), id="many flows"),
        pytest.param(4_000_000, 1024 * GIB, (4_000_000, 262_144), id="a large node"),
    ],
)
def test_the_nodes_memory_bounds_the_room_for_flows(
    flows: int, memory: int, expected: tuple[int, int]
):
    assert flow_room(flows, memory, 2)[:2] == expected


@pytest.mark.parametrize(
    ("cpus", "first", "stack_nat"),
    [(1, 16_384, 4096), (32, 16_384, 8192), (48, 32_768, 16_384), (512, 65_536, 16_384)],
)
def test_tables_that_evict_begin_with_room_for_what_the_cpus_keep(
    cpus: int, first: int, stack_nat: int
):
    sizes = sizes_for((), flow_room(131_072, 64 * GIB, cpus))
    assert (sizes.ct_short, sizes.ct_udp, sizes.stack_nat) == (first, first, stack_nat)
    assert sizes.ct_stream == sizes.sockets == 65_536
    assert sizes.ct_dsr == Sizes().ct_dsr
    assert sizes_for((), flow_room(131_072, 64 * GIB, cpus, has_dsr=True)).ct_dsr == first


@pytest.mark.parametrize(("dsr", "entries"), [("off", 0), ("annotated", 16_384), ("all", 16_384)])
def test_a_node_that_takes_part_in_direct_server_return_has_room_for_its_flows(
    monkeypatch: pytest.MonkeyPatch, dsr: Literal["off", "annotated", "all"], entries: int
):
    monkeypatch.setattr(libbpf, "possible_cpus", lambda: 8)
    assert room_for_flows(replace(SETTINGS, dsr=dsr)).dsr == entries


@pytest.mark.parametrize(("used", "crowded"), [(8, set()), (9, {"ct_udp"})])
def test_a_table_is_crowded_when_it_is_more_than_half_full(used: int, crowded: set[str]):
    maps = memory_maps({"lb_ct_udp": 16, "lb_ct_short": 16})
    table = maps["lb_ct_udp"]
    for port in range(used):
        table.update(bytes(LbTuple(sport=port)), bytes(table.value_size))
    assert crowded_tables(maps, 64) == crowded
    assert crowded_tables(maps, 16) == set()


def test_a_crowded_table_gets_four_times_the_room_up_to_that_of_the_node():
    sizes = Sizes().with_larger({"ct_udp"}, 1 << 18)
    assert sizes == replace(Sizes(), ct_udp=4 * Sizes().ct_udp)
    assert sizes.with_larger({"ct_udp"}, 100_000).ct_udp == 100_000


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


def test_the_programs_know_which_records_to_make():
    ended = FlowEvent.LB_FLOW_END, FlowEvent.LB_FLOW_REFUSED, FlowEvent.LB_FLOW_DROPPED
    assert flow_records(SETTINGS) == ({*ended}, 1, 1000)
    settings = replace(SETTINGS, flow_events=("start", "dropped"), flow_sample=10, flow_rate=0)
    wanted = {FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_DROPPED}
    assert flow_records(settings) == (wanted, 10, 0)
    assert flow_records(replace(SETTINGS, flow_events=())) == (set(), 1, 1000)
    settings = replace(SETTINGS, flow_events=("dropped",), metrics_latency=True)
    wanted = {FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END, FlowEvent.LB_FLOW_DROPPED}
    assert flow_records(settings) == (wanted, 1, 1000)


def flow_records(settings: Settings) -> tuple[set[FlowEvent], int, int]:
    """Which events make records, for one in how many flows, and at most how many a second."""
    target = memory_maps()["lb_settings"]
    write_settings(target, settings, flags=SettingFlag(0), primary={})
    found = LbSettings.from_buffer_copy(target.lookup(bytes(4)) or b"")
    events = {event for event in FlowEvent if found.flow_events >> event & 1}
    return events, found.flow_sample, found.flow_rate


# After each pass over the flows

_SECOND = 1_000_000_000


@pytest.fixture
def maps() -> MapSet:
    """With two flows that were diverted, one of them a moment ago however long the test takes."""
    made = memory_maps()
    for port, ago in ((1, 10), (2, -1000)):
        created = time.monotonic_ns() - ago * _SECOND
        entry = LbConntrack(created=created, hook=Hook.LB_HOOK_HOST_INGRESS)
        made["lb_conntrack"].update(bytes(LbTuple(sport=port)), bytes(entry))
    return made


def run(upkeep: Upkeep, maps: MapSet) -> None:
    upkeep.begin(maps)
    thread = upkeep._thread
    assert thread
    thread.join(60)
    assert not thread.is_alive()


def ports(maps: MapSet, name: str) -> list[int]:
    return [LbTuple.from_buffer_copy(key).sport for key, _ in maps[name].items()]


def test_flows_come_back_once_they_are_no_longer_diverted(maps: MapSet):
    upkeep = Upkeep(unknown_connections())
    run(upkeep, maps)
    assert ports(maps, "lb_ct_short") == []
    upkeep.bring_flows_back(maps)
    run(upkeep, maps)
    assert (ports(maps, "lb_ct_short"), ports(maps, "lb_conntrack")) == ([1], [2])


def test_flows_come_back_to_the_tables_in_use_and_not_to_those_that_go(maps: MapSet):
    upkeep = Upkeep(unknown_connections())
    upkeep.bring_flows_back(maps)
    upkeep.leave_flows()
    run(upkeep, maps)
    assert ports(maps, "lb_ct_short") == []


def test_a_step_that_fails_does_not_keep_others(
    maps: MapSet, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def fail(*_: object) -> int:
        raise ProbeError("no sockets")

    monkeypatch.setattr(ClosedSockets, "forget", fail)
    upkeep = Upkeep(unknown_connections())
    upkeep.bring_flows_back(maps)
    with caplog.at_level(logging.WARNING):
        run(upkeep, maps)
    assert "map maintenance failed: no sockets" in caplog.text
    assert ports(maps, "lb_ct_short") == [1]
