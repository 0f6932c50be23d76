# SPDX-License-Identifier: Apache-2.0
"""Which connections are found, and ended, over maps in memory and lists of sockets."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from ebpflb.dataplane.flows.held_connections import HeldConnections
from ebpflb.dataplane.kernel.sock_diag import ConnectedSocket, SockDiag, TcpConnection
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction, Hook
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.errors import ProbeError
from ebpflb.model.address import Protocol, SocketAddress, parse_address
from ebpflb.model.ending.endings import Ending, EndReason, HeldConnection
from ebpflb.model.service import ServicePortName
from tests.unit.dataplane.explain.node import tuple_of
from tests.unit.dataplane.view.opened import NOW, POD, SERVING, VIP, Opened

WEB = ServicePortName("default", "web", "http", Protocol.TCP)
CLIENT = "198.51.100.7"
SNAT = "192.0.2.1"


def at(text: str, port: int) -> SocketAddress:
    return SocketAddress(parse_address(text), port)


def socket(
    cookie: int, own: SocketAddress, peer: SocketAddress, idle: float = 5.0
) -> TcpConnection:
    return TcpConnection(ConnectedSocket(cookie, *peer, 2, b"", Protocol.TCP), own, idle)


class Machine(Opened):
    """The maps of a node, and the connections in each namespace; each may be ended once."""

    def __init__(self, *namespaces: list[TcpConnection]) -> None:
        super().__init__()
        self.namespaces = [*namespaces, [], []]
        self.here = 0
        self.ended: list[int] = []
        self.held = HeldConnections(
            self.maps,
            diag=cast(Callable[[], SockDiag], self._diag),
            visit=self._visit,
            now=lambda: NOW,
        )

    def tunneled(self, age: int) -> None:
        entry = LbConntrack(
            to=tuple_of(CLIENT, 1234, SERVING, 8080),
            direction=Direction.LB_DIR_ORIGINAL,
            hook=Hook.LB_HOOK_HOST_INGRESS,
            flags=CtFlag.LB_CT_TUNNELED,
            state=CtState.LB_CT_ESTABLISHED,
            service=self.service,
            created=NOW - age * 10**9,
        )
        key = tuple_of(CLIENT, 1234, VIP, 80)
        self.maps["lb_conntrack"].update(bytes(key), bytes(entry))

    @contextmanager
    def _diag(self) -> Iterator["Machine"]:
        yield self

    def _visit(self, visit: Callable[[], bool]) -> None:
        for here in range(1, len(self.namespaces)):
            self.here = here
            assert not visit()
        self.here = 0

    def connections(self) -> Iterable[TcpConnection]:
        return list(self.namespaces[self.here])

    def destroy(self, one: ConnectedSocket) -> bool:
        self.ended.append(one.cookie)
        return one.cookie != GONE

    def read(self) -> list[HeldConnection]:
        found = self.held.read({self.service: WEB})
        assert set(found) <= {WEB}
        return found.get(WEB, [])


GONE = 9
OF_POD = socket(1, at(POD, 4001), at(SERVING, 8080))


def test_a_socket_is_found_in_any_namespace_with_its_frontend():
    machine = Machine([], [OF_POD])
    machine.tcp(1, age=10)
    machine.tcp(2, age=10)
    expected = HeldConnection(1, at(VIP, 80), False, at(SERVING, 8080), 10.0, 5.0)
    assert machine.read() == [expected]


def test_it_was_not_idle_longer_than_it_is_open():
    machine = Machine([OF_POD._replace(idle=1e6)])
    machine.tcp(1, age=10)
    assert [each.idle for each in machine.read()] == [10.0]


def test_connections_of_other_services_are_left_out():
    machine = Machine([OF_POD])
    machine.tcp(1)
    assert machine.held.read({machine.service + 1: WEB}) == {}
    machine.flow()
    assert machine.held.read({machine.service + 1: WEB}) == {}


def test_a_flow_from_outside_is_found_by_the_socket_of_its_endpoint():
    machine = Machine([socket(7, at(CLIENT, 1234), at(VIP, 80))], [])
    machine.flow(age=20)
    assert machine.read() == []
    machine.namespaces[1] = [socket(8, at(SERVING, 8080), at(SNAT, 30000))]
    expected = HeldConnection(8, at(VIP, 80), True, at(SERVING, 8080), 20.0, 5.0)
    assert machine.read() == [expected]


def test_what_came_in_a_tunnel_is_found_where_its_endpoint_is():
    """The endpoint sees the client's own address."""
    machine = Machine([], [socket(8, at(SERVING, 8080), at(CLIENT, 1234))])
    machine.tunneled(age=20)
    expected = HeldConnection(8, at(VIP, 80), True, at(SERVING, 8080), 20.0, 5.0)
    assert machine.read() == [expected]


def test_a_flow_of_a_pod_is_found_by_either_socket_and_counts_once():
    machine = Machine([socket(7, at(CLIENT, 1234), at(VIP, 80))])
    machine.namespaces[1] = [socket(8, at(SERVING, 8080), at(SNAT, 30000))]
    machine.flow(hook=Hook.LB_HOOK_POD_INGRESS)
    assert [(each.cookie, each.is_outside) for each in machine.read()] == [(7, False)]


def test_connections_opened_in_the_same_tick_of_the_clock_are_as_many():
    machine = Machine([OF_POD, socket(2, at(POD, 4002), at(SERVING, 8080))])
    machine.tcp(1, age=10)
    machine.tcp(2, age=10)
    assert [each.cookie for each in machine.read()] == [1, 2]


@pytest.mark.parametrize("state", [CtState.LB_CT_CLOSED, CtState.LB_CT_OTHER_FIN])
def test_a_flow_that_is_over_is_left_out(state: CtState):
    machine = Machine([socket(8, at(SERVING, 8080), at(SNAT, 30000))])
    machine.flow(state | CtState.LB_CT_ESTABLISHED)
    assert machine.read() == []


def ending(cookie: int, idle: float = 5.0) -> Ending:
    held = HeldConnection(cookie, at(VIP, 80), False, at(SERVING, 8080), 10.0, idle)
    return Ending(WEB, held, EndReason.UNEVEN, idle)


def test_only_those_that_are_still_idle_are_ended():
    others = [socket(cookie, at(POD, cookie), at(SERVING, 8080)) for cookie in (2, 3, GONE)]
    machine = Machine([OF_POD], others)
    wanted = [ending(1), ending(2, 6.0), ending(GONE), ending(4)]
    assert machine.held.end(wanted) == wanted[:1]
    assert machine.ended == [1, GONE]


def test_nobody_is_visited_for_nothing():
    machine = Machine()
    machine.namespaces = None  # type: ignore[assignment]
    assert machine.held.end([]) == []


def test_a_namespace_that_cannot_be_visited_is_named():
    machine = Machine()

    def fail(_: object) -> None:
        raise OSError("no permission")

    held = HeldConnections(
        machine.maps, diag=cast(Callable[[], SockDiag], machine._diag), visit=fail
    )
    with pytest.raises(ProbeError, match="cannot look at TCP connections: no permission"):
        held.read({})
