# SPDX-License-Identifier: Apache-2.0
"""The connections that are open through Services on this node, at the socket and at tc.

The maps know what a socket was translated to, the kernel's list of sockets whose it is and how it
goes: programs store neither for each connection.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, reverse
from ebpflb.dataplane.flows.tcp_records import tcp_records
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.namespaces import visit_others
from ebpflb.dataplane.kernel.sock_diag import OpenSocket, SockDiag
from ebpflb.dataplane.layout.enums import CtState, Direction, Hook
from ebpflb.dataplane.layout.structs import (
    LbConntrack,
    LbSocket,
    LbSocketKey,
    LbTuple,
)
from ebpflb.dataplane.view.snapshot import Snapshot
from ebpflb.model.address import Address, Protocol, format_address
from ebpflb.model.connection import (
    BOUND,
    CLOSING,
    ENDED,
    ESTABLISHED,
    EXCHANGE,
    OPENING,
    SOCKET,
    STREAM,
    TC,
    OpenConnection,
)
from ebpflb.model.flow import Directions, FlowBackend, FlowClient, FlowFrontend, FlowService
from ebpflb.model.service import ServicePortName

Sockets = Mapping[int, OpenSocket]
"""By cookie."""

# enum tcp_state.
_TCP_ESTABLISHED, _TCP_SYN_SENT = 1, 2


class _KnownPorts(NamedTuple):
    """Service ports by id, and the ends of their endpoints that serve."""

    names: Mapping[int, ServicePortName]
    served: frozenset[tuple[int, Address, int]]

    def service(self, identity: int) -> FlowService | None:
        name = self.names.get(identity)
        return FlowService(namespace=name[0], name=name[1], port=name[2]) if name else None

    def is_removed(self, identity: int, address: Address, port: int) -> bool:
        return (identity, address, port) not in self.served


def open_sockets() -> dict[Protocol, Sockets]:
    """The sockets of all network namespaces of this machine. OSError."""
    found: dict[Protocol, dict[int, OpenSocket]] = {Protocol.TCP: {}, Protocol.UDP: {}}

    def look() -> bool:
        with SockDiag() as diag:
            for protocol, sockets in found.items():
                sockets.update((each.cookie, each) for each in diag.sockets(protocol))
        return False

    look()
    visit_others(look)
    return dict(found)


def open_connections(
    maps: MapSet,
    snapshot: Snapshot,
    sockets: Mapping[Protocol, Sockets],
    now: Callable[[], int] = time.monotonic_ns,
) -> Iterator[OpenConnection]:
    """In no order. `sockets`: of all network namespaces. MapError."""
    known = _known(snapshot)
    yield from _tcp_sockets(maps, known, sockets[Protocol.TCP], now)
    yield from _udp_sockets(maps, known, sockets[Protocol.UDP])
    yield from _flows(maps, known, now)


def _known(snapshot: Snapshot) -> _KnownPorts:
    return _KnownPorts(
        snapshot.names,
        frozenset(
            (each.service_id, each.address, each.port)
            for group in snapshot.backends.values()
            for each in group
            if each.is_served
        ),
    )


def _tcp_sockets(
    maps: MapSet, known: _KnownPorts, sockets: Sockets, now: Callable[[], int]
) -> Iterator[OpenConnection]:
    for cookie, record in tcp_records(maps):
        socket = sockets.get(cookie)
        progress = socket.progress if socket else None
        age = _seconds(now() - record.started) if record.started else None
        backend = Address(bytes(record.backend_addr))
        yield OpenConnection(
            path=SOCKET,
            protocol=Protocol.TCP.name,
            state=_tcp_state(progress.state) if progress else OPENING,
            client=_client(socket),
            frontend=_frontend(Address(bytes(record.addr)), record.port),
            service=known.service(record.service),
            backend=_backend(backend, record.backend_port),
            removed=known.is_removed(record.service, backend, record.backend_port),
            age=age,
            # Before the first data it counts from the machine's start.
            idle=min(progress.idle, age) if progress and age is not None else None,
            bytes=Directions(original=progress.sent, reply=progress.received) if progress else None,
        )


def _udp_sockets(maps: MapSet, known: _KnownPorts, sockets: Sockets) -> Iterator[OpenConnection]:
    for raw, value in maps["lb_sockets"].items():
        key = LbSocketKey.from_buffer_copy(raw)
        if key.direction != Direction.LB_DIR_REPLY:
            continue
        record = LbSocket.from_buffer_copy(value)
        backend = Address(bytes(key.peer))
        yield OpenConnection(
            path=SOCKET,
            protocol=Protocol.UDP.name,
            state=BOUND,
            client=_client(sockets.get(key.cookie)),
            frontend=_frontend(Address(bytes(record.peer)), record.port),
            service=known.service(record.service),
            backend=_backend(backend, key.port),
            removed=known.is_removed(record.service, backend, key.port),
        )


def _flows(maps: MapSet, known: _KnownPorts, now: Callable[[], int]) -> Iterator[OpenConnection]:
    for key, entry in originals(maps):
        is_over = entry.whole_state & CtState.LB_CT_CLOSED
        if entry.hook == Hook.LB_HOOK_RESERVED or is_over:
            continue
        reply = _lookup(maps, reverse(bytes(entry.to)))
        backend = Address(bytes(entry.to.daddr))
        last_seen = max(entry.last_seen, reply.last_seen if reply else 0)
        yield OpenConnection(
            path=TC,
            protocol=Protocol(key.proto).name,
            state=flow_state(key, entry),
            client=FlowClient(address=format_address(Address(bytes(key.saddr))), port=key.sport),
            frontend=_frontend(Address(bytes(key.daddr)), key.dport),
            service=known.service(entry.service),
            backend=_backend(backend, entry.to.dport),
            removed=known.is_removed(entry.service, backend, entry.to.dport),
            age=_seconds(now() - entry.created),
            idle=_seconds(now() - last_seen),
            # With direct server return nobody here sees the answers.
            bytes=Directions(original=entry.bytes, reply=reply.bytes) if reply else None,
        )


def originals(maps: MapSet, begin: bytes = b"") -> Iterator[tuple[LbTuple, LbConntrack]]:
    """The entries of requests. MapError. `begin`: of the key, which has both addresses first."""
    for name in FLOW_TABLES:
        for key, value in maps[name].items():
            if (
                key.startswith(begin)
                and value[LbConntrack.direction.offset] == Direction.LB_DIR_ORIGINAL
            ):
                yield LbTuple.from_buffer_copy(key), LbConntrack.from_buffer_copy(value)


def _lookup(maps: MapSet, key: bytes) -> LbConntrack | None:
    for name in FLOW_TABLES:
        if value := maps[name].lookup(key):
            return LbConntrack.from_buffer_copy(value)
    return None


def flow_state(key: LbTuple, entry: LbConntrack) -> str:
    """A word for the state of a flow at tc."""
    if entry.whole_state & CtState.LB_CT_CLOSED:
        return ENDED
    is_established = entry.whole_state & CtState.LB_CT_ESTABLISHED
    if key.proto == Protocol.UDP:
        return STREAM if is_established else EXCHANGE
    if entry.whole_state & CtState.LB_CT_OTHER_FIN:
        return CLOSING
    return ESTABLISHED if is_established else OPENING


def _tcp_state(state: int) -> str:
    return {_TCP_ESTABLISHED: ESTABLISHED, _TCP_SYN_SENT: OPENING}.get(state, CLOSING)


def _client(socket: OpenSocket | None) -> FlowClient | None:
    """None for a socket that was closed meanwhile."""
    if socket is None:
        return None
    return FlowClient(address=format_address(socket.address), port=socket.port)


def _frontend(address: Address, port: int) -> FlowFrontend:
    return FlowFrontend(address=format_address(address), port=port)


def _backend(address: Address, port: int) -> FlowBackend:
    return FlowBackend(address=format_address(address), port=port)


def _seconds(ns: int) -> float:
    """What was written after `now()` is no younger than 0 s."""
    return round(max(ns, 0) / 1e9, 1)
