# SPDX-License-Identifier: Apache-2.0
"""The established TCP connections through some Services that have a socket on this node, and their
end: the socket is destroyed, its process gets ECONNABORTED, and the other side a reset.

The maps know which Service and endpoint a connection belongs to, and the kernel's list of sockets
when it last had data. A connection at tc has a socket here if its client or its endpoint is here.
"""

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from ebpflb.dataplane.flows.conntrack import ends_of, is_udp
from ebpflb.dataplane.flows.tcp_records import tcp_records
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.namespaces import visit_others
from ebpflb.dataplane.kernel.sock_diag import SockDiag, TcpConnection
from ebpflb.dataplane.layout.enums import CtState, Direction, Hook
from ebpflb.dataplane.layout.structs import LbConntrack, packed_format
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, SocketAddress
from ebpflb.model.ending.endings import Ending, HeldConnection
from ebpflb.model.service import ServicePortName

_FLOW = packed_format(
    LbConntrack, "to", "created", "service", "direction", "hook", "state", "other_state"
)
_ORIGINAL = int(Direction.LB_DIR_ORIGINAL)
_OUTSIDE = int(Hook.LB_HOOK_HOST_INGRESS)
_OVER = int(CtState.LB_CT_CLOSED | CtState.LB_CT_OTHER_FIN)


class _Translated(NamedTuple):
    """What the maps know of a connection. opened: CLOCK_MONOTONIC, ns, to a tick of the clock.

    of: the cookie of its socket, or the ends that its client sees.
    """

    of: "int | _Ends"
    port: ServicePortName
    frontend: SocketAddress
    is_outside: bool
    backend: SocketAddress
    opened: int


_Ends = tuple[SocketAddress, SocketAddress]
"""A socket's own address and its peer's."""


class HeldConnections:
    """Of this network namespace and of all others that have a name or a process."""

    def __init__(
        self,
        maps: MapSet,
        *,
        diag: Callable[[], SockDiag] = SockDiag,
        visit: Callable[[Callable[[], bool]], None] = visit_others,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """`diag`, `visit` and `now` are for tests."""
        self._maps = maps
        self._diag = diag
        self._visit = visit
        self._now = now

    def read(
        self, services: Mapping[int, ServicePortName]
    ) -> Mapping[ServicePortName, list[HeldConnection]]:
        """`services`: by their ids. MapError, or ProbeError if a namespace was not visited."""
        by_cookie = dict(self._of_sockets(services))
        by_ends = dict(self._of_flows(services))
        found: dict[ServicePortName, list[HeldConnection]] = defaultdict(list)
        seen = set[_Translated]()

        def look(each: TcpConnection, _: SockDiag) -> None:
            socket = each.socket
            peer = SocketAddress(socket.peer, socket.port)
            known = by_cookie.get(socket.cookie) or by_ends.get((each.own, peer))
            if known and known not in seen:
                seen.add(known)
                age = (self._now() - known.opened) / 1e9
                where = known.frontend, known.is_outside, known.backend
                held = HeldConnection(socket.cookie, *where, age, min(each.idle, age))
                found[known.port].append(held)

        self._look_at_all(look)
        return found

    def end(self, wanted: Iterable[Ending]) -> list[Ending]:
        """End those that are still idle; returns them. ProbeError as above."""
        left = {each.connection.cookie: each for each in wanted}
        ended = []

        def look(each: TcpConnection, diag: SockDiag) -> None:
            ending = left.get(each.socket.cookie)
            if ending and each.idle >= ending.idle and diag.destroy(each.socket):
                ended.append(left.pop(each.socket.cookie))

        if left:
            self._look_at_all(look)
        return ended

    def _look_at_all(self, look: Callable[[TcpConnection, SockDiag], None]) -> None:
        def look_here() -> bool:
            with self._diag() as diag, self._diag() as ending:
                for each in diag.connections():
                    look(each, ending)
            return False

        try:
            look_here()
            self._visit(look_here)
        except OSError as error:
            raise ProbeError(f"cannot look at TCP connections: {error}") from error

    def _of_sockets(
        self, services: Mapping[int, ServicePortName]
    ) -> Iterator[tuple[int, _Translated]]:
        """By cookie."""
        for cookie, record in tcp_records(self._maps):
            if port := services.get(record.service):
                frontend = SocketAddress(Address(bytes(record.addr)), record.port)
                backend = SocketAddress(Address(bytes(record.backend_addr)), record.backend_port)
                yield cookie, _Translated(cookie, port, frontend, False, backend, record.started)

    def _of_flows(
        self, services: Mapping[int, ServicePortName]
    ) -> Iterator[tuple[_Ends, _Translated]]:
        """By the ends that the client's socket has, and by those of the endpoint's."""
        for key, value in self._maps["lb_conntrack"].items():
            to, created, service, direction, hook, state, other_state = _FLOW.unpack(value)
            port = services.get(service)
            if not port or direction != _ORIGINAL or is_udp(key) or (state | other_state) & _OVER:
                continue
            source, backend = _sockets_of(to)
            client, frontend = _sockets_of(key)
            ends = client, frontend
            known = _Translated(ends, port, frontend, hook == _OUTSIDE, backend, created)
            if not known.is_outside:
                yield ends, known
            yield (backend, source), known


def _sockets_of(key: bytes) -> _Ends:
    source, destination = ends_of(key)
    return SocketAddress(*source), SocketAddress(*destination)
