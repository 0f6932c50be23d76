# SPDX-License-Identifier: Apache-2.0
"""Which entries of closed sockets are deleted, over maps in memory and lists of sockets."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import pytest

from ebpflb.dataplane.flows.closed_sockets import ClosedSockets
from ebpflb.dataplane.kernel.sock_diag import SockDiag
from ebpflb.dataplane.layout.structs import LbSocket, LbSocketKey
from ebpflb.errors import ProbeError
from ebpflb.model.address import Protocol
from tests.memory_maps import memory_maps

ROOM = 8
MANY = range(1, ROOM // 2 + 2)


class Machine:
    """Open sockets by their cookies, of this namespace and of another."""

    def __init__(self) -> None:
        self.maps = memory_maps({"lb_sockets": ROOM, "lb_connections": ROOM})
        self.open = {Protocol.UDP: ({1}, {2}), Protocol.TCP: ({3}, {4})}
        self.looks = 0
        self.fails = False
        self._place = 0
        diag = cast(Callable[[], SockDiag], self._diag)
        self.closed = ClosedSockets(diag=diag, visit=self._visit)

    def record(self, *cookies: int) -> None:
        for cookie in cookies:
            self.maps["lb_sockets"].update(bytes(LbSocketKey(cookie=cookie)), bytes(LbSocket()))

    def connect(self, *cookies: int) -> None:
        table = self.maps["lb_connections"]
        for cookie in cookies:
            table.update(cookie.to_bytes(8, "little"), bytes(table.value_size))

    def left(self, name: str = "lb_sockets") -> set[int]:
        return {key[0] for key, _ in self.maps[name].items()}

    @contextmanager
    def _diag(self) -> Iterator["Machine"]:
        yield self

    def cookies(self, protocol: Protocol) -> set[int]:
        self.looks += 1
        if self.fails:
            raise OSError("netlink")
        return self.open[protocol][self._place]

    def _visit(self, visit: Callable[[], bool]) -> None:
        self._place = 1
        assert not visit()
        self._place = 0

    def forget(self) -> int:
        return self.closed.forget(self.maps)


def test_nobody_looks_for_sockets_while_there_is_room():
    machine = Machine()
    machine.record(*range(10, 10 + ROOM // 2))
    assert machine.forget() == machine.forget() == machine.looks == 0


def test_what_no_socket_has_in_two_passes_is_deleted():
    machine = Machine()
    machine.record(*MANY)
    assert machine.forget() == 0
    assert machine.forget() == len(MANY) - 2
    assert machine.left() == {1, 2}


def test_a_socket_that_was_about_to_get_its_port_keeps_its_entry():
    machine = Machine()
    machine.record(*MANY)
    machine.forget()
    machine.open[Protocol.UDP][1].add(MANY[-1])
    assert machine.forget() == len(MANY) - 3
    assert machine.left() == {1, 2, MANY[-1]}


def test_an_entry_that_came_after_the_first_pass_waits_for_another():
    machine = Machine()
    machine.record(*MANY)
    machine.forget()
    machine.record(100)
    machine.forget()
    assert machine.left() == {1, 2, 100}


def test_tcp_connections_are_those_of_tcp_sockets():
    machine = Machine()
    machine.connect(*MANY)
    assert (machine.forget(), machine.forget()) == (0, len(MANY) - 2)
    assert machine.left("lb_connections") == {3, 4}


def test_where_a_namespace_cannot_be_looked_into_nothing_is_deleted():
    machine = Machine()
    machine.record(*MANY)
    machine.forget()
    machine.fails = True
    with pytest.raises(ProbeError, match="cannot look for closed sockets: netlink"):
        machine.forget()
    assert machine.left() == set(MANY)
