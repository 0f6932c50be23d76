# SPDX-License-Identifier: Apache-2.0
"""Which sockets are destroyed, over maps in memory and a list of sockets."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from ebpflb.dataplane.flows.stale_sockets import Ended, StaleSockets
from ebpflb.dataplane.kernel.sock_diag import ConnectedSocket, SockDiag
from ebpflb.dataplane.layout.enums import BackendFlag, Direction
from ebpflb.dataplane.layout.structs import LbAddr, LbBackend, LbSocket, LbSocketKey, u32
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Family, Protocol, parse_address
from tests.memory_maps import memory_maps

POD, OTHER, POD6, VIP = map(parse_address, ("10.1.0.1", "10.1.0.2", "fd00:1::1", "10.96.0.1"))
PORT = 53
SERIAL = 7


class Namespace:
    """Sockets that are there; each may be ended once."""

    def __init__(self, *sockets: tuple[int, Address, int]) -> None:
        self.sockets = [ConnectedSocket(*each, 2, b"") for each in sockets]
        self.ended: list[int] = []
        self.looks = 0

    def connected(self) -> list[ConnectedSocket]:
        self.looks += 1
        return list(self.sockets)

    def destroy(self, one: ConnectedSocket) -> bool:
        self.sockets.remove(one)
        self.ended.append(one.cookie)
        return True


class Machine:
    """The agent's namespace and others; backend 1 serves until a test says otherwise."""

    def __init__(self, own: Namespace, others: Iterable[Namespace] = ()) -> None:
        self.maps = memory_maps()
        self.own, self.others = own, list(others)
        self._here = own
        diag = cast(Callable[[], SockDiag], self._diag)
        self.stale = StaleSockets(self.maps, diag=diag, visit=self._visit)
        self.backend(BackendFlag.LB_BACKEND_USABLE)

    def backend(self, flags: int, serial: int = SERIAL) -> None:
        record = LbBackend(port=PORT, proto=Protocol.UDP, flags=flags, serial=serial)
        self.maps["lb_backends"].update(bytes(u32(1)), bytes(record))

    def record(self, cookie: int, peer: Address = POD, **changes: Any) -> None:
        fields = {"proto": Protocol.UDP, "direction": Direction.LB_DIR_REPLY} | changes
        key = LbSocketKey(cookie=cookie, peer=LbAddr.from_buffer_copy(peer), port=PORT, **fields)
        frontend = LbAddr.from_buffer_copy(VIP)
        value = LbSocket(peer=frontend, port=PORT, backend=1, serial=SERIAL)
        self.maps["lb_sockets"].update(bytes(key), bytes(value))

    @contextmanager
    def _diag(self) -> Iterator[Namespace]:
        yield self._here

    def _visit(self, visit: Callable[[], bool]) -> None:
        for other in self.others:
            self._here = other
            if visit():
                break
        self._here = self.own

    def end(self) -> Ended:
        return self.stale.end()


def test_a_socket_whose_backend_serves_is_left_alone():
    machine = Machine(Namespace((1, POD, PORT)))
    machine.record(1)
    assert machine.end() == ({}, False)
    machine.backend(BackendFlag.LB_BACKEND_SERVING)
    assert machine.end() == ({}, False)
    assert machine.own.looks == 0


@pytest.mark.parametrize(
    ("flags", "serial"),
    [
        pytest.param(0, SERIAL, id="it is gone"),
        pytest.param(BackendFlag.LB_BACKEND_USABLE, SERIAL + 1, id="another has its index"),
    ],
)
def test_a_socket_whose_backend_serves_no_more_is_ended(flags: int, serial: int):
    machine = Machine(Namespace((1, POD, PORT), (2, POD6, PORT)))
    machine.record(1)
    machine.record(2, POD6)
    machine.backend(flags, serial)
    assert machine.end().sockets == {Family.IPV4: 1, Family.IPV6: 1}
    assert machine.own.ended == [1, 2]


@pytest.mark.parametrize(
    "there",
    [
        pytest.param((2, POD, PORT), id="another socket"),
        pytest.param((1, OTHER, PORT), id="connected elsewhere since"),
        pytest.param((1, POD, PORT + 1), id="another port"),
    ],
)
def test_what_was_not_translated_to_that_is_left_alone(there: tuple[int, Address, int]):
    machine = Machine(Namespace(there))
    machine.record(1)
    machine.backend(0)
    assert machine.end().sockets == {}
    assert machine.own.ended == []


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"proto": Protocol.TCP}, id="TCP"),
        pytest.param({"direction": Direction.LB_DIR_ORIGINAL}, id="what sendmsg() remembers"),
    ],
)
def test_other_records_do_not_count(changes: dict[str, Any]):
    machine = Machine(Namespace((1, POD, PORT)))
    machine.record(1, **changes)
    machine.backend(0)
    assert machine.end() == ({}, False)
    assert machine.own.ended == []


def test_other_namespaces_are_visited_until_every_socket_was_found():
    others = [Namespace((5, POD, PORT)), Namespace((2, POD, PORT)), Namespace((6, POD, PORT))]
    machine = Machine(Namespace((1, POD, PORT)), others)
    machine.record(1)
    machine.record(2)
    machine.backend(0)
    assert machine.end().sockets == {Family.IPV4: 2}
    assert [each.ended for each in others] == [[], [2], []]
    assert others[2].looks == 0


def test_a_socket_that_connects_while_it_is_looked_for_is_found_later():
    machine = Machine(Namespace())
    machine.record(1)
    machine.backend(0)
    assert machine.end() == ({}, True)
    machine.own.sockets.append(ConnectedSocket(1, POD, PORT, 2, b""))
    assert machine.end() == ({Family.IPV4: 1}, False)


def test_what_was_looked_for_twice_is_not_looked_for_again():
    machine = Machine(Namespace())
    machine.record(1)
    machine.backend(0)
    machine.end()
    machine.end()
    looks = machine.own.looks
    assert machine.end() == ({}, False)
    assert machine.own.looks == looks


def test_a_namespace_that_cannot_be_looked_into_is_an_error_and_everything_is_repeated():
    machine = Machine(Namespace())
    machine.record(1)
    machine.backend(0)
    machine.own.sockets.append(ConnectedSocket(1, POD, PORT, 2, b""))
    machine.own.destroy = refuse  # type: ignore[assignment]
    with pytest.raises(ProbeError, match="cannot close stale UDP sockets"):
        machine.end()
    del machine.own.destroy
    assert machine.end().sockets == {Family.IPV4: 1}


def refuse(_: ConnectedSocket) -> bool:
    raise PermissionError(1, "Operation not permitted")
