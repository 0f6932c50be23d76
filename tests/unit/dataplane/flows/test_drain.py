# SPDX-License-Identifier: Apache-2.0
"""What a drain removes, and how long it waits."""

from collections.abc import Iterable

import pytest

from ebpflb.dataplane.flows.claimed_ports import PERIOD_SECONDS, ClaimedPorts
from ebpflb.dataplane.flows.conntrack import flow_key
from ebpflb.dataplane.flows.drain import drain
from ebpflb.dataplane.flows.source_ports import Reservations
from ebpflb.dataplane.kernel.ctnetlink import Reply
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction, Hook
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import Protocol, parse_address
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend
from tests.unit.dataplane.world import SIZES


class Clock:
    """Time that passes during sleep; `ends`: when the flows end."""

    def __init__(self, maps, ends: float) -> None:
        self.now = 0.0
        self._maps, self._ends = maps, ends

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self._ends:
            table = self._maps["lb_conntrack"]
            table.delete_batch([key for key, _ in table.items()])


@pytest.fixture
def maps():
    made = memory_maps(SIZES)
    Sync(made, quiesce=lambda: None).resync(by_service(frontend(choice=backends("10.1.0.1"))))
    return made


def add_flow(
    maps, number: int, state: int = 0, table: str = "lb_conntrack", flags: int = 0
) -> None:
    for direction in Direction:
        key = bytes([number, direction]) + bytes(38)
        hook = Hook.LB_HOOK_HOST_INGRESS
        entry = LbConntrack(state=state, direction=direction, hook=hook, flags=flags)
        maps[table].update(key, bytes(entry))


def test_nothing_new_is_taken(maps):
    clock = Clock(maps, 0)
    assert drain(maps, 30, clock, clock.sleep) == 0
    assert list(maps["lb_frontends"].items()) == []
    states = [AddrRecord.unpack(value) for _, value in maps["lb_addr_flags"].items()]
    assert not any(each.flags for each in states)
    assert parse_address("10.96.0.1") in {each.address for each in states}


def test_it_ends_with_the_last_flow(maps):
    add_flow(maps, 1)
    clock = Clock(maps, ends=7)
    assert drain(maps, 30, clock, clock.sleep) == 0
    assert clock.now == pytest.approx(7)


def test_flows_that_do_not_end_are_counted(maps):
    add_flow(maps, 1)
    add_flow(maps, 2)
    clock = Clock(maps, ends=1000)
    assert drain(maps, 30, clock, clock.sleep) == 2
    assert clock.now == pytest.approx(30, abs=0.3)


@pytest.mark.parametrize(("protocol", "left"), [(Protocol.TCP, 1), (Protocol.UDP, 0)])
def test_connections_in_tunnels_are_waited_for_and_datagrams_are_not(maps, protocol, left):
    key = flow_key((parse_address("198.51.100.1"), 1), (parse_address("10.96.0.1"), 80), protocol)
    maps["lb_ct_dsr"].update(key, bytes(LbConntrack(direction=Direction.LB_DIR_ORIGINAL)))
    clock = Clock(maps, ends=1000)
    assert drain(maps, 30, clock, clock.sleep) == left


def test_a_closed_flow_is_not_waited_for(maps):
    add_flow(maps, 1, CtState.LB_CT_CLOSED)
    clock = Clock(maps, ends=1000)
    assert drain(maps, 30, clock, clock.sleep) == 0
    assert clock.now == pytest.approx(1)


def test_only_ended_flows_give_their_ports_back(maps):
    add_flow(maps, 1, CtState.LB_CT_SYN, "lb_ct_short")
    add_flow(maps, 2, CtState.LB_CT_SYN | CtState.LB_CT_CLOSED, "lb_ct_short")
    clock = Clock(maps, ends=1000)
    drain(maps, 30, clock, clock.sleep)
    assert {key[0] for key, _ in maps["lb_ct_short"].items()} == {1}


def test_connections_of_another_nat_are_not_waited_for(maps):
    pod, node = parse_address("10.1.0.1"), parse_address("192.0.2.1")
    found = [Reply(Protocol.TCP, pod, 8080, node, port) for port in (1024, 1025)]
    Reservations(maps, (30000, 32767), connections=lambda: iter([found])).renew({node})
    assert len(list(maps["lb_conntrack"].items())) == 2
    clock = Clock(maps, ends=1000)
    assert drain(maps, 30, clock, clock.sleep) == 0
    assert clock.now == pytest.approx(1)


def test_ports_of_open_flows_are_claimed_before_others_may_take_them_and_until_the_end(maps):
    add_flow(maps, 1, flags=CtFlag.LB_CT_SNAT)
    served = []

    def add(flows: Iterable[Reply], _: int) -> int:
        served.append(len(list(maps["lb_frontends"].items())))
        return len(list(flows))

    clock = Clock(maps, ends=PERIOD_SECONDS + 10)
    claims = ClaimedPorts(maps, add=add, clock=clock)
    drain(maps, 2 * PERIOD_SECONDS, clock, clock.sleep, claims)
    assert served[0]
    assert served[1:] == [0, 0]
