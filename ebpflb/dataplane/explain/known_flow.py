# SPDX-License-Identifier: Apache-2.0
"""Existing flows: the one that tc finds for a tuple, and all flows of a client."""

import time
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from ebpflb.dataplane.explain.lookups import IndexedBackend, Lookups, seconds_since
from ebpflb.dataplane.explain.steps import Candidate, Client, ClientKind, Rewrite
from ebpflb.dataplane.flows.conntrack import (
    FLOW_TABLES,
    UDP_TABLES,
    End,
    flow_key,
    is_udp,
    reverse,
)
from ebpflb.dataplane.flows.tcp_records import tcp_records
from ebpflb.dataplane.flows.timeouts import udp_timeout
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import BackendFlag, CtFlag, CtState, Direction, Hook
from ebpflb.dataplane.layout.records import BackendRecord, pack_index
from ebpflb.dataplane.layout.structs import (
    LbConntrack,
    LbSocket,
    LbSocketKey,
    LbTuple,
)
from ebpflb.dataplane.view.connections import flow_state, originals
from ebpflb.model.address import Address, Protocol, format_address
from ebpflb.model.plan import FrontendKey
from ebpflb.words.connections import Fate

_USABLE = BackendFlag.LB_BACKEND_USABLE
_SERVING = _USABLE | BackendFlag.LB_BACKEND_SERVING
HOOKS = {
    ClientKind.HOST: Hook.LB_HOOK_HOST_EGRESS,
    ClientKind.POD: Hook.LB_HOOK_POD_INGRESS,
    ClientKind.OUTSIDE: Hook.LB_HOOK_HOST_INGRESS,
}
"""Where tc translates what a client opens."""


class KnownFlow(NamedTuple):
    """What a conntrack entry means for a packet from this client to this destination."""

    fate: Fate
    why: str
    candidates: tuple[Candidate, ...] = ()


class ExistingFlow(NamedTuple):
    """A flow at tc from a client to a frontend. age, silent: since its first, last packet."""

    client_port: int
    backend: str
    backend_port: int
    state: str
    age: float
    silent: float


class SocketCount(NamedTuple):
    """How many sockets of this node are connected to this backend through a frontend."""

    backend: str
    backend_port: int
    sockets: int


def known_flow(lookups: Lookups, client: Client, target: FrontendKey) -> KnownFlow | None:
    """lb_known_flow() for a SYN, an INIT or a datagram from the client's port; None: a new flow."""
    if not client.port:
        return None
    key = _key(client, target)
    entry = _lookup(lookups.maps, key)
    if entry is None:
        return None
    if entry.hook == Hook.LB_HOOK_RESERVED:
        return KnownFlow(
            Fate.PASSES, "belongs to another NAT or a process of this node: not translated"
        )
    record = _current_backend(lookups, key, entry)
    is_here = entry.hook == HOOKS[client.kind] and entry.direction == Direction.LB_DIR_ORIGINAL
    if not is_here or record is None:
        return None
    candidate = Candidate(IndexedBackend(entry.backend, record), 1.0, _rewrite(entry))
    return KnownFlow(Fate.TRANSLATED, "belongs to an existing flow", (candidate,))


def _key(client: Client, target: FrontendKey) -> bytes:
    source, destination = (client.address, client.port), (target.address, target.port)
    return flow_key(source, destination, target.protocol)


def _lookup(maps: MapSet, key: bytes) -> LbConntrack | None:
    for name in UDP_TABLES if is_udp(key) else FLOW_TABLES:
        value = maps[name].lookup(key)
        if value:
            return LbConntrack.from_buffer_copy(value)
    return None


def _current_backend(lookups: Lookups, key: bytes, entry: LbConntrack) -> BackendRecord | None:
    """lb_conntrack_is_current() and not lb_has_lost_reply(), for a packet that opens a flow."""
    peer = _lookup(lookups.maps, reverse(bytes(entry.to)))
    if peer and reverse(bytes(peer.to)) != key:
        peer = None
    has_dsr = bool(entry.flags & CtFlag.LB_CT_DSR)
    if peer is None and not (has_dsr or entry.whole_state & CtState.LB_CT_ESTABLISHED):
        return None
    if is_udp(key):
        return None if _is_idle(lookups, entry, peer) else _backend(lookups, entry, _SERVING)
    ends = CtState.LB_CT_CLOSED | CtState.LB_CT_OTHER_FIN * has_dsr
    is_over = entry.whole_state & ends and not _is_retried(entry, peer)
    return None if is_over else _backend(lookups, entry, _USABLE)


def _is_retried(entry: LbConntrack, peer: LbConntrack | None) -> bool:
    """lb_conntrack_retry()."""
    closed = CtState.LB_CT_CLOSED
    if peer is None or entry.whole_state != CtState.LB_CT_SYN | closed:
        return False
    return bool(peer.whole_state == CtState.LB_CT_ACK | closed)


def _is_idle(lookups: Lookups, entry: LbConntrack, peer: LbConntrack | None) -> bool:
    """lb_conntrack_is_idle()."""
    last_seen = max(each.last_seen for each in (entry, peer) if each)
    return seconds_since(last_seen) > udp_timeout(lookups.settings, entry.whole_state)


def _backend(lookups: Lookups, entry: LbConntrack, flags: BackendFlag) -> BackendRecord | None:
    value = lookups.maps["lb_backends"].lookup(pack_index(entry.backend))
    record = BackendRecord.unpack(value) if value else None
    same = record and record.serial == entry.serial and record.flags & flags
    return record if same else None


def _rewrite(entry: LbConntrack) -> Rewrite:
    to = Address(bytes(entry.to.saddr))
    return Rewrite(
        source=to if entry.flags & CtFlag.LB_CT_SNAT else None,
        hairpin=bool(entry.flags & CtFlag.LB_CT_HAIRPIN),
        node=to if entry.flags & CtFlag.LB_CT_DSR else None,
    )


def flows_of(maps: MapSet, client: Client, target: FrontendKey) -> list[ExistingFlow]:
    """The flows of a client to a frontend, or only from its port; sorted by port. MapError."""
    ends = client.address + target.address
    return sorted(
        _view(key, entry)
        for key, entry in originals(maps, ends)
        if (key.dport, key.proto) == (target.port, target.protocol)
        and client.port in (0, key.sport)
    )


def _view(key: LbTuple, entry: LbConntrack) -> ExistingFlow:
    now = time.monotonic_ns()
    return ExistingFlow(
        client_port=key.sport,
        backend=format_address(Address(bytes(entry.to.daddr))),
        backend_port=entry.to.dport,
        state=flow_state(key, entry),
        age=round((now - entry.created) / 1e9, 1),
        silent=round((now - entry.last_seen) / 1e9, 1),
    )


def sockets_to(maps: MapSet, target: FrontendKey) -> list[SocketCount]:
    """The sockets of this node that are connected to a frontend, by backend. MapError."""
    wanted = (target.address, target.port)
    found = Counter(
        (format_address(backend), port)
        for frontend, (backend, port) in _sockets(maps, target.protocol, target.address)
        if frontend == wanted
    )
    return [SocketCount(*backend, count) for backend, count in sorted(found.items())]


def _sockets(maps: MapSet, protocol: Protocol, to: bytes = b"") -> Iterator[tuple[End, End]]:
    """Frontend and backend of each record, without most that have no address `to`."""
    if protocol == Protocol.UDP:
        for raw, value in maps["lb_sockets"].items():
            key = LbSocketKey.from_buffer_copy(raw)
            if to in value and key.direction == Direction.LB_DIR_REPLY:
                socket = LbSocket.from_buffer_copy(value)
                yield (
                    (Address(bytes(socket.peer)), socket.port),
                    (Address(bytes(key.peer)), key.port),
                )
    elif protocol == Protocol.TCP:
        for _, each in tcp_records(maps, to):
            yield (
                (Address(bytes(each.addr)), each.port),
                (Address(bytes(each.backend_addr)), each.backend_port),
            )
