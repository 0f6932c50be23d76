# SPDX-License-Identifier: Apache-2.0
"""Which backends a new connection may get, and which source address they see.

Source ranges (source_range.h), session affinity (affinity.h), backends (backend.h), hairpin,
masquerade and tunnels (service.h, masquerade.h, dsr.h).
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import NamedTuple

from ebpflb.config.values import socket_address
from ebpflb.dataplane.explain.flow_hash import client_hash, flow_hash, place_of
from ebpflb.dataplane.explain.limits import Excess, backends_excess, full_backends
from ebpflb.dataplane.explain.lookups import (
    IndexedBackend,
    Lookups,
    SlotRange,
    backend_key,
    seconds_since,
)
from ebpflb.dataplane.explain.steps import (
    Candidate,
    Client,
    ClientKind,
    ClientSide,
    Rewrite,
    RouteTo,
)
from ebpflb.dataplane.kernel.rtnetlink import Route
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    BackendFlag,
    DescFlag,
    DropReason,
    IfEmptyCode,
    SettingFlag,
)
from ebpflb.dataplane.layout.records import SCHEDULERS, DescRecord, SocketRecord, ejection_of
from ebpflb.dataplane.view.snapshot import decode_frontend, is_hashed
from ebpflb.model.address import Address, Protocol, family_of, format_address, is_link_local
from ebpflb.model.plan import Backend, Frontend
from ebpflb.model.service import ServicePortName
from ebpflb.words.scheduler import Scheduler

_NO_ROUTE = Rewrite(reason=DropReason.LB_DROP_NO_ROUTE)


class BackendChoice(NamedTuple):
    """The backends that the connection may get, or why there are none.

    Without either it passes: LB_EMPTY_PASS. excess: if all of them are full.
    """

    reason: DropReason | None
    candidates: tuple[Candidate, ...] = ()
    affinity: str = ""
    scheduler: str = ""
    excess: Excess | None = None

    @property
    def passes(self) -> bool:
        return not self.reason and not self.candidates


def frontend_in_force(lookups: Lookups, desc: DescRecord) -> Frontend:
    """The frontend that the model planned, without `serving` and `ejected`. MapError."""
    protocol = Protocol(desc.protocol)
    name = lookups.name_of(desc) or ServicePortName("", "", "", protocol)
    local, others = (
        list(_planned(lookups, desc, _range_of(desc, side)))
        for side in (ClientSide.THIS_NODE, ClientSide.ELSEWHERE)
    )
    sources, limits = lookups.source_ranges(desc), lookups.limits(desc)
    return decode_frontend(desc, name, (local, others), sources, limits)


def _planned(lookups: Lookups, desc: DescRecord, slots: SlotRange) -> Iterator[Backend]:
    backends = lookups.backends(slots)
    weights = lookups.weights(slots, backends, is_hashed=is_hashed(desc))
    for found, weight in zip(backends, weights, strict=True):
        key, flags = backend_key(found.record), found.record.flags
        is_terminating = bool(flags & BackendFlag.LB_BACKEND_TERMINATING)
        state = _is_local(found), is_terminating, ejection_of(flags)
        yield Backend(key.address, key.port, *state, weight=weight)


def _is_local(backend: IndexedBackend) -> bool:
    return bool(backend.record.flags & BackendFlag.LB_BACKEND_LOCAL)


def _range_of(desc: DescRecord, side: ClientSide) -> SlotRange:
    if side is ClientSide.THIS_NODE:
        return SlotRange(desc.local_base, desc.local_count, desc.local_if_empty, desc.local_table)
    return SlotRange(desc.others_base, desc.others_count, desc.others_if_empty, desc.others_table)


def in_source_ranges(lookups: Lookups, desc: DescRecord, client: Address) -> bool:
    """lb_source_range_check()."""
    if not desc.flags & DescFlag.LB_DESC_SOURCE_RANGES:
        return True
    return any(prefix.covers(client) for prefix in lookups.source_ranges(desc))


class Hashed(NamedTuple):
    """The client's values that schedulers hash, None if unknown; bit: lb_opening_client_bit()."""

    client: Address | None
    port: int | None
    bit: int


def choose(
    lookups: Lookups, desc: DescRecord, side: ClientSide, client: Address, hashed: Hashed
) -> BackendChoice:
    """lb_service_choose() for a client within the source ranges."""
    slots = _range_of(desc, side)
    backends = lookups.backends(slots)
    full = full_backends(lookups, desc, backends)
    recalled, affinity = _affinity(lookups, desc, slots, client, hashed.bit)
    if recalled and recalled.map_index in full:
        recalled, affinity = None, "the client's last endpoint is full"
    if recalled:
        return BackendChoice(None, _sure(recalled, backends, full), affinity)
    if slots.if_empty == IfEmptyCode.LB_EMPTY_PASS and not slots.length:
        return BackendChoice(None, affinity=affinity)
    if not backends:
        drops = slots.if_empty == IfEmptyCode.LB_EMPTY_DROP and not slots.length
        no_local, none = DropReason.LB_DROP_NO_LOCAL_ENDPOINT, DropReason.LB_DROP_NO_ENDPOINT
        return BackendChoice(no_local if drops else none, affinity=affinity)
    if len(full) == len(backends):
        excess = backends_excess(lookups, desc, len(backends))
        return BackendChoice(excess.reason, affinity=affinity, excess=excess)
    only, scheduler = _scheduled(lookups, desc, slots, hashed)
    if only and only.map_index not in full and lookups.backend_admits(only, hashed.bit):
        return BackendChoice(None, _sure(only, backends, full), affinity, scheduler)
    weights = lookups.weights(slots, backends, is_hashed=is_hashed(desc))
    are_full = [each.map_index in full for each in backends]
    admits = [lookups.backend_admits(each, hashed.bit) for each in backends]
    chances = _chances(weights, admits, are_full)
    found = tuple(
        Candidate(each, chance, is_full=is_full)
        for each, chance, is_full in zip(backends, chances, are_full, strict=True)
    )
    return BackendChoice(None, found, affinity, scheduler)


def _sure(
    chosen: IndexedBackend, backends: Iterable[IndexedBackend], full: Container[int]
) -> tuple[Candidate, ...]:
    return tuple(
        Candidate(each, float(each == chosen), is_full=each.map_index in full) for each in backends
    )


def _chances(
    weights: Sequence[int], admits: Sequence[bool], are_full: Sequence[bool]
) -> list[float]:
    """Those that find a backend full, or on trial and busy, go on to any other that is neither.

    If there is none, to any that is not full.
    """
    shares = [weight / sum(weights) for weight in weights]
    may = [admitted and not full for admitted, full in zip(admits, are_full, strict=True)]
    if not any(may):
        may = [not full for full in are_full]
    on = sum(share for share, taken in zip(shares, may, strict=True) if not taken)
    on /= sum(may)
    return [(share + on) * taken for share, taken in zip(shares, may, strict=True)]


def _scheduled(
    lookups: Lookups, desc: DescRecord, slots: SlotRange, hashed: Hashed
) -> tuple[IndexedBackend | None, str]:
    """lb_scheduler_stateless_slot(), if its input is known."""
    scheduler = SCHEDULERS[desc.scheduler]
    weighted = ", for its weight" if slots.table else ""
    if scheduler is Scheduler.LEAST_CONNECTIONS:
        return None, f"of two at random, the one with fewer connections from this node{weighted}"
    if scheduler is Scheduler.LOWEST_LATENCY:
        return None, f"of two at random, the faster one, times its connections{weighted}"
    if not scheduler.has_table:
        return None, ""
    if hashed.client is None:
        return None, "depends on the client's network namespace, which is unknown"
    if scheduler is Scheduler.SOURCE_HASH:
        number = client_hash(hashed.client)
    elif hashed.port is None:
        return None, "depends on the client's port, or on the socket at the socket hook"
    else:
        number = flow_hash(hashed.client, hashed.port, SocketRecord.unpack(desc.frontend))
    first = slots.base + slots.length if slots.table else slots.base
    chosen = lookups.backend_at(first + place_of(number, slots.table or slots.length))
    return chosen, f"the hash leads to {_end(chosen)}" if chosen else ""


def _end(backend: IndexedBackend) -> str:
    address, port, _ = backend_key(backend.record)
    return socket_address(format_address(address), port)


def _affinity(
    lookups: Lookups, desc: DescRecord, slots: SlotRange, client: Address, client_bit: int
) -> tuple[IndexedBackend | None, str]:
    if not desc.affinity_timeout:
        return None, ""
    entry = lookups.affinity_of(desc, client)
    if entry is None:
        return None, "the client has no entry and will stay with the endpoint it gets now"
    age = seconds_since(entry.last_used)
    recalled = lookups.affinity_recall(entry, desc.affinity_timeout, slots, client_bit)
    if recalled:
        return recalled, f"stays with {_end(recalled)}, last used {age:.0f} s ago"
    if age >= desc.affinity_timeout:
        return None, f"the client's entry has expired, last used {age:.0f} s ago"
    return None, "the client's last endpoint is no longer usable"


def rewrite(
    lookups: Lookups, client: Client, desc: DescRecord, backend: IndexedBackend, route: RouteTo
) -> Rewrite:
    """lb_service_from_pod(), lb_service_from_outside(), lb_service_from_host()."""
    address = backend_key(backend.record).address
    if client.kind is ClientKind.HOST:
        way = route(address)
        return Rewrite() if way and not way.is_local else _NO_ROUTE
    if client.kind is ClientKind.POD and address == client.address:
        return _hairpin(lookups, address)
    has_dsr = _has_dsr(lookups, client, desc, backend)
    if has_dsr and (node := lookups.pod_node(address)):
        way = route(node)
        return Rewrite(node=node) if way and not way.is_local else _NO_ROUTE
    is_masqueraded = bool(desc.flags & DescFlag.LB_DESC_MASQUERADE)
    is_masqueraded = is_masqueraded and not _is_own_process(lookups, address)
    is_outside = client.kind is ClientKind.OUTSIDE
    is_here = _is_local(backend) and not (is_outside and _is_beside(client, desc, address, route))
    if is_masqueraded or (is_outside and not is_here and not _is_own_process(lookups, address)):
        found = _forwarded(lookups, address, is_masqueraded, is_here, route)
        return found._replace(lacks_tunnel=has_dsr)
    return Rewrite()


def _has_dsr(lookups: Lookups, client: Client, desc: DescRecord, backend: IndexedBackend) -> bool:
    """lb_dsr_node() without the lookup, for external clients."""
    is_here = _is_local(backend) or _is_own_process(lookups, backend_key(backend.record).address)
    is_wanted = bool(desc.flags & DescFlag.LB_DESC_DSR)
    is_outside = client.kind is ClientKind.OUTSIDE and not lookups.is_of_cluster(client.address)
    return is_wanted and is_outside and not is_here


def _is_beside(client: Client, desc: DescRecord, address: Address, route: RouteTo) -> bool:
    """lb_is_beside(), for a pod that is on this node according to its endpoint."""
    way = None if desc.flags & DescFlag.LB_DESC_EXTERNAL_LOCAL else route(address)
    return bool(way and not way.is_local and way.ifindex == client.ifindex)


def _hairpin(lookups: Lookups, address: Address) -> Rewrite:
    """A pod that connects to itself sees the node's address as the source."""
    found = _source(lookups.node_address(family_of(address)))
    return found._replace(hairpin=found.reason is None)


def _is_own_process(lookups: Lookups, address: Address) -> bool:
    return bool(lookups.addr_flags_of(address) & AddrFlag.LB_ADDR_NODE)


def _forwarded(
    lookups: Lookups, address: Address, is_masqueraded: bool, is_here: bool, route: RouteTo
) -> Rewrite:
    """lb_masquerade(): a pod routed here sees the client's address unless SNAT is required."""
    way = route(address)
    if way is None or way.is_local:
        return _NO_ROUTE
    family = family_of(address)
    source = None if is_here else _masquerade_source(lookups, way, address)
    if source is None and not is_masqueraded:
        return Rewrite()
    found = _source(lookups.node_address(family) if source is None else source)
    via_stack = lookups.has_setting(SettingFlag.LB_SETTING_VIA_STACK)
    return found._replace(via_stack=via_stack and found.reason is None)


def _masquerade_source(lookups: Lookups, way: Route, address: Address) -> Address | None:
    """lb_masquerade_source(): a link-local next hop is not in any subnet."""
    gateway = way.gateway
    next_hop = gateway if gateway and not is_link_local(gateway) else address
    return lookups.masquerade_source(way.ifindex, next_hop)


def _source(source: Address) -> Rewrite:
    return Rewrite(source) if any(source) else Rewrite(reason=DropReason.LB_DROP_NO_SNAT_ADDRESS)
