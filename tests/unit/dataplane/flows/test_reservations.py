# SPDX-License-Identifier: Apache-2.0
import logging
from collections.abc import Iterator, Sequence

import pytest

from ebpflb.dataplane.flows import source_ports
from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from ebpflb.dataplane.flows.expiry import Expiry
from ebpflb.dataplane.flows.source_ports import (
    IDLE_PERIOD_SECONDS,
    PERIOD_SECONDS,
    Reservations,
)
from ebpflb.dataplane.kernel.ctnetlink import Reply
from ebpflb.dataplane.layout.enums import Hook
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings
from ebpflb.dataplane.view.dump import decode_map
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.address import Protocol, parse_address
from tests.memory_maps import memory_maps

TCP, UDP = Protocol.TCP, Protocol.UDP
NODE, POD, OTHER = map(parse_address, ("192.0.2.1", "10.1.0.1", "192.0.2.77"))
NODE6, POD6 = map(parse_address, ("2001:db8::1", "fd00:1::1"))
ADDRESSES = {NODE, NODE6}
# No answer has an entry in lb_ct_dsr.
TABLES = [name for name in FLOW_TABLES if name != "lb_ct_dsr"]
ROOM = 8
NODE_PORTS = (30000, 32767)
RANGES = {NODE_PORTS: ((1024, 1999), (61000, 61999))}


class Kernel:
    """Connections that netfilter knows, by datagram; `fails` after the first one. `now`: s."""

    def __init__(self, *datagrams: Sequence[Reply]) -> None:
        self.datagrams = list(datagrams)
        self.fails = False
        self.now = 0.0
        self.maps = memory_maps(dict.fromkeys(TABLES, ROOM))
        self.reservations = self.new_agent()

    def new_agent(self) -> Reservations:
        return Reservations(
            self.maps, NODE_PORTS, connections=self.connections, clock=lambda: self.now
        )

    def connections(self) -> Iterator[Sequence[Reply]]:
        for datagram in self.datagrams:
            yield datagram
            if self.fails:
                raise OSError(1, "Operation not permitted")

    def entries(self, table: str) -> dict[bytes, LbConntrack]:
        return {key: LbConntrack.from_buffer_copy(each) for key, each in self.maps[table].items()}

    def reserved(self) -> list[str]:
        """Destination and its port, of all reservations."""
        found = [each for name in TABLES for each in decode_map(self.maps[name])]
        return [f"{each.key['daddr']} {each.key['dport']}" for each in found]  # type: ignore


def tcp(port: int) -> Reply:
    return Reply(TCP, POD, 8080, NODE, port)


def sctp(port: int) -> Reply:
    return Reply(Protocol.SCTP, POD, 8080, NODE, port)


@pytest.fixture(autouse=True)
def ports(monkeypatch):
    monkeypatch.setattr(source_ports, "own_ports", RANGES.__getitem__)


def test_tuples_of_both_families_and_protocols_are_reserved():
    kernel = Kernel(
        [tcp(1024), Reply(UDP, POD, 53, NODE, 1999)], [Reply(TCP, POD6, 80, NODE6, 61000)]
    )
    kernel.reservations.renew(ADDRESSES)
    assert sorted(kernel.reserved()) == ["192.0.2.1 1024", "192.0.2.1 1999", "2001:db8::1 61000"]
    assert [len(kernel.entries(name)) for name in TABLES] == [2, 0, 0, 1]
    shown = decode_map(kernel.maps["lb_ct_stream"])[0]
    assert shown.key == {
        "saddr": "10.1.0.1",
        "daddr": "192.0.2.1",
        "sport": 53,
        "dport": 1999,
        "proto": "udp",
    }
    assert shown.value["hook"] == "reserved"  # type: ignore[index, call-overload]


@pytest.mark.parametrize("port", [1023, 2000, 60999, 62000])
def test_ports_that_we_never_use_need_no_reservation(port):
    kernel = Kernel([tcp(port)])
    kernel.reservations.renew(ADDRESSES)
    assert kernel.reserved() == []


def test_replies_to_others_need_no_reservation():
    kernel = Kernel([Reply(TCP, POD, 8080, OTHER, 1500)])
    kernel.reservations.renew(ADDRESSES)
    assert kernel.reserved() == []


@pytest.mark.parametrize("table", TABLES)
def test_a_flow_of_ours_keeps_its_tuple(table):
    is_udp = table in ("lb_ct_udp", "lb_ct_stream")
    reserved = "lb_ct_stream" if is_udp else "lb_conntrack"
    kernel = Kernel([Reply(UDP if is_udp else TCP, POD, 8080, NODE, 1500)])
    kernel.reservations.renew(ADDRESSES)
    (key,) = kernel.entries(reserved)
    kernel.maps[reserved].delete(key)
    ours = LbConntrack(hook=Hook.LB_HOOK_HOST_INGRESS)
    kernel.maps[table].update(key, bytes(ours))
    kernel.reservations.renew(ADDRESSES)
    assert [kernel.entries(name) for name in TABLES if kernel.entries(name)] == [{key: ours}]


def test_a_reservation_ends_with_its_connection():
    kernel = Kernel([tcp(1500), tcp(1501), Reply(UDP, POD, 53, NODE, 1502)])
    kernel.reservations.renew(ADDRESSES)
    kernel.datagrams = [[tcp(1501)]]
    kernel.reservations.renew(ADDRESSES)
    assert kernel.reserved() == ["192.0.2.1 1501"]


def test_those_of_an_earlier_agent_end_as_well():
    kernel = Kernel([tcp(1500)])
    kernel.reservations.renew(ADDRESSES)
    kernel.datagrams = []
    kernel.new_agent().renew(ADDRESSES)
    assert kernel.reserved() == []


def test_flows_of_ours_are_never_ended():
    kernel = Kernel()
    for name in TABLES:
        kernel.maps[name].update(bytes(40), bytes(LbConntrack(hook=Hook.LB_HOOK_POD_INGRESS)))
    kernel.reservations.renew(ADDRESSES)
    assert [len(kernel.entries(name)) for name in TABLES] == [1, 1, 1, 1]


def test_half_of_a_table_is_left_to_flows(caplog):
    kernel = Kernel([tcp(1024 + i) for i in range(ROOM)])
    for _ in range(2):
        kernel.reservations.renew(ADDRESSES)
    assert len(kernel.reserved()) == ROOM // 2
    assert caplog.text.count("no room to reserve all source ports of other NAT") == 1


def test_expiry_leaves_reservations_alone():
    kernel = Kernel([tcp(1500), Reply(UDP, POD, 53, NODE, 1502)])
    kernel.reservations.renew(ADDRESSES)
    timeouts = LbSettings(tcp_established_timeout=1, tcp_opening_timeout=1, udp_timeout=1)
    kernel.maps["lb_settings"].update(bytes(4), bytes(timeouts))
    ten_years = 10 * 365 * 86400 * 10**9
    assert Expiry(kernel.maps, clock=lambda: ten_years).step().deleted == 0
    assert len(kernel.reserved()) == 2


def test_what_is_served_does_not_count_reservations():
    kernel = Kernel([tcp(1500)])
    kernel.reservations.renew(ADDRESSES)
    assert read_frontends(kernel.maps) == []


def test_when_the_kernel_does_not_report_it_is_said_once_and_nothing_is_lost(caplog):
    kernel = Kernel([tcp(1500)], [tcp(1501)])
    kernel.reservations.renew(ADDRESSES)
    kernel.fails = True
    for _ in range(2):
        kernel.reservations.renew(ADDRESSES)
    warnings = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert warnings == [
        "cannot list the source ports of other NAT, some may be used twice: Operation not permitted"
    ]
    assert len(kernel.reserved()) == 2


def test_it_is_looked_again_and_more_seldom_while_there_are_none():
    kernel = Kernel([tcp(1500)])
    kernel.reservations.renew(ADDRESSES)
    kernel.datagrams = [[tcp(1501)]]
    assert not kernel.reservations.step(ADDRESSES)
    assert kernel.reserved() == ["192.0.2.1 1500"]
    kernel.now += PERIOD_SECONDS
    run_to_the_end(kernel)
    assert kernel.reserved() == ["192.0.2.1 1501"]
    kernel.datagrams = []
    kernel.now += PERIOD_SECONDS
    run_to_the_end(kernel)
    kernel.datagrams = [[tcp(1502)]]
    kernel.now += PERIOD_SECONDS
    assert not kernel.reservations.step(ADDRESSES)
    assert kernel.reserved() == []
    kernel.now += IDLE_PERIOD_SECONDS
    run_to_the_end(kernel)
    assert kernel.reserved() == ["192.0.2.1 1502"]


def test_a_step_looks_at_some_connections_only():
    datagram = [tcp(1500), *[Reply(TCP, POD, 8080, OTHER, 1500)] * 511]
    kernel = Kernel(datagram, datagram, [tcp(1501)])
    kernel.reservations.renew(ADDRESSES)
    kernel.now += PERIOD_SECONDS
    assert run_to_the_end(kernel) == 3


def run_to_the_end(kernel: Kernel) -> int:
    """How many steps there were before the last one."""
    steps = 0
    while kernel.reservations.step(ADDRESSES):
        steps += 1
    return steps


def test_connections_and_associations_are_distinguished():
    kernel = Kernel([tcp(1500), sctp(1501)])
    kernel.reservations.renew(ADDRESSES)
    kernel.datagrams = [[sctp(1501)]]
    kernel.reservations.renew(ADDRESSES)
    assert kernel.reserved() == ["192.0.2.1 1501"]
    assert len(kernel.entries("lb_conntrack")) == 1


def test_what_the_programs_have_reserved_ends_by_timeout_and_not_here():
    kernel = Kernel([])
    key = bytes(kernel.maps["lb_ct_short"].key_size)
    made = LbConntrack(last_seen=7, hook=Hook.LB_HOOK_RESERVED)
    kernel.maps["lb_ct_short"].update(key, bytes(made))
    kernel.reservations.renew(ADDRESSES)
    assert key in kernel.entries("lb_ct_short")
