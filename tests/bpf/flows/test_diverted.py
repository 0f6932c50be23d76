# SPDX-License-Identifier: Apache-2.0
"""While evicting tables are replaced, new flows are diverted to other tables and work."""

from collections.abc import Callable
from typing import Any

import pytest

from ebpflb.dataplane.flows.diverted import bring_back
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple
from tests.bpf.flows.flow import Flow
from tests.bpf.flows.held import Held, UdpSessions
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import Kind
from tests.bpf.harness.services import node_addresses

NAMES = ("lb_conntrack", "lb_ct_stream", "lb_ct_short", "lb_ct_udp")


def divert(datapath: Datapath, *, on: bool = True) -> None:
    datapath.settings(flags=SettingFlag.LB_SETTING_DIVERT if on else 0)


def counts(datapath: Datapath) -> list[int]:
    return [len(list(datapath.maps[name].items())) for name in NAMES]


def test_a_diverted_handshake_is_in_the_established_table(flow: Flow):
    divert(flow.datapath)
    flow.request("S")
    flow.reply("SA")
    assert counts(flow.datapath) == [2, 0, 0, 0]
    assert not flow.datapath.short()
    flow.request("A")
    assert flow.is_established()
    flow.request("PA")
    flow.reply("PA")


def test_a_diverted_handshake_goes_on_after_the_diversion(flow: Flow):
    divert(flow.datapath)
    flow.request("S")
    divert(flow.datapath, on=False)
    flow.reply("SA")
    flow.request("A")
    assert flow.is_established()


def test_a_handshake_that_began_before_is_not_diverted(flow: Flow):
    flow.request("S")
    divert(flow.datapath)
    flow.reply("SA")
    flow.request("S")
    assert flow.is_short()
    flow.request("A")
    assert flow.is_established()


def test_a_half_open_flow_returns_and_goes_on(flow: Flow):
    divert(flow.datapath)
    flow.request("S")
    flow.reply("SA")
    divert(flow.datapath, on=False)
    assert not bring_back(flow.datapath.maps)
    assert bring_back(flow.datapath.maps, lambda: 1 << 63)
    assert flow.is_short()
    flow.request("A")
    assert flow.is_established()


class Interrupted:
    """A table for the agent that runs a callback after each insert."""

    def __init__(self, table: BpfMap, happens: Callable[[], object]) -> None:
        self._table, self._happens = table, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._table, name)

    def update(self, *args: Any, **options: Any) -> None:
        self._table.update(*args, **options)
        self._happens()


def test_a_connection_that_is_established_while_it_goes_back_goes_on(flow: Flow):
    divert(flow.datapath)
    flow.request("S")
    flow.reply("SA")
    divert(flow.datapath, on=False)
    maps = flow.datapath.maps
    meanwhile = Interrupted(maps["lb_ct_short"], lambda: flow.request("A"))
    assert bring_back({**maps, "lb_ct_short": meanwhile}, lambda: 1 << 63)
    flow.reply("PA")
    flow.request("PA")
    assert flow.is_established()


def test_a_returning_flow_replaces_an_older_flow_but_no_newer_one(flow: Flow):
    divert(flow.datapath)
    flow.request("S")
    settled, opening = (flow.datapath.maps[name] for name in ("lb_conntrack", "lb_ct_short"))
    now = dict(settled.items())
    for later in (-1, 1):
        others = {key: LbConntrack.from_buffer_copy(value) for key, value in now.items()}
        for key, other in others.items():
            other.created += later
            opening.update(key, bytes(other))
            settled.update(key, now[key])
        assert bring_back(flow.datapath.maps, lambda: 1 << 63)
        expected = now if later < 0 else {key: bytes(other) for key, other in others.items()}
        assert dict(opening.items()) == expected


def test_when_the_other_table_is_full_flows_are_not_diverted(flow: Flow):
    table = flow.datapath.maps["lb_conntrack"]
    others = [bytes(LbTuple(sport=port)) for port in range(SIZES.conntrack)]
    table.update_batch([(key, bytes(table.value_size)) for key in others])
    divert(flow.datapath)
    flow.request("S")
    flow.reply("SA")
    assert flow.is_short()


def test_a_reset_flow_gives_way_to_a_new_one(flow: Flow):
    divert(flow.datapath)
    flow.request("S")
    flow.reply("RA")
    flow.establish()
    assert flow.is_established()


@pytest.mark.parametrize("on", [False, True], ids=["before", "meanwhile"])
def test_masqueraded_connections_keep_their_ports(
    datapath: Datapath, node: Node, tcp: Kind, on: bool
):
    node_addresses(datapath, node)
    held = Held(datapath, node, tcp)
    datapath.settings(snat_ports=((2000, 2099), (3000, 3099)))
    for port in range(50_000, 50_010):
        held.establish(port, meanwhile=lambda: divert(datapath, on=on))
    for port in range(50_010, 50_030):
        held.establish(port)
    held.assert_all_go_on()
    assert counts(datapath) == [60, 0, 0, 0]


def test_diverted_udp_flows_are_in_the_stream_table(datapath: Datapath, node: Node, udp: Kind):
    node_addresses(datapath, node)
    divert(datapath)
    sessions = UdpSessions(datapath, node, udp)
    _, streams, short, usual = counts(datapath)
    assert (streams > 0, short, usual) == (True, 0, 0)
    sessions.assert_all_go_on()
    divert(datapath, on=False)
    sessions.assert_all_go_on()
    assert bring_back(datapath.maps, lambda: 1 << 63)
    assert counts(datapath) == [0, 0, 0, streams]
    sessions.assert_all_go_on()


def test_udp_flows_that_began_before_keep_their_ports(datapath: Datapath, node: Node, udp: Kind):
    node_addresses(datapath, node)
    sessions = UdpSessions(datapath, node, udp)
    before = counts(datapath)
    divert(datapath)
    others = UdpSessions(datapath, node, udp)
    others.assert_all_go_on()
    sessions.assert_all_go_on()
    assert counts(datapath)[3] == before[3]
