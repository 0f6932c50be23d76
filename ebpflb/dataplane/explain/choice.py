# SPDX-License-Identifier: Apache-2.0
"""Which backends a new connection may get, and which source address the backend sees.

Source ranges (source_range.h), session affinity (affinity.h), backends (backend.h), hairpin and
masquerade (service.h, masquerade.h).
"""

from typing import NamedTuple

from ebpflb.config.values import socket_address
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
from ebpflb.dataplane.layout.enums import AddrFlag, BackendFlag, DescFlag, DropReason, IfEmptyCode
from ebpflb.dataplane.layout.records import DescRecord, SocketAddress
from ebpflb.dataplane.view.snapshot import decode_frontend
from ebpflb.model.address import Address, Protocol, family_of, format_address
from ebpflb.model.plan import Backend, Frontend
from ebpflb.model.service import ServicePortName

_NO_ROUTE = Rewrite(reason=DropReason.LB_DROP_NO_ROUTE)


class BackendChoice(NamedTuple):
    """The backends that the connection may get, or why there are none."""

    reason: DropReason | None
    candidates: tuple[Candidate, ...] = ()
    affinity: str = ""


def frontend_in_force(lookups: Lookups, desc: DescRecord) -> Frontend:
    """The frontend that the model planned, without `serving`. MapError."""
    protocol = Protocol(SocketAddress.unpack(desc.frontend).protocol)
    name = lookups.name_of(desc) or ServicePortName("", "", "", protocol)
    local, others = (
        [_plan_backend(each) for each in lookups.backends(_range_of(desc, side))]
        for side in (ClientSide.THIS_NODE, ClientSide.ELSEWHERE)
    )
    return decode_frontend(desc, name, (local, others), lookups.source_ranges(desc))


def _plan_backend(found: IndexedBackend) -> Backend:
    key, flags = backend_key(found.record), found.record.flags
    is_terminating = bool(flags & BackendFlag.LB_BACKEND_TERMINATING)
    return Backend(key.address, key.port, _is_local(found), is_terminating)


def _is_local(backend: IndexedBackend) -> bool:
    return bool(backend.record.flags & BackendFlag.LB_BACKEND_LOCAL)


def _range_of(desc: DescRecord, side: ClientSide) -> SlotRange:
    if side is ClientSide.THIS_NODE:
        return SlotRange(desc.local_base, desc.local_count, desc.local_if_empty)
    return SlotRange(desc.others_base, desc.others_count, desc.others_if_empty)


def in_source_ranges(lookups: Lookups, desc: DescRecord, client: Address) -> bool:
    """lb_source_range_check()."""
    if not desc.flags & DescFlag.LB_DESC_SOURCE_RANGES:
        return True
    return any(prefix.covers(client) for prefix in lookups.source_ranges(desc))


def choose(lookups: Lookups, desc: DescRecord, side: ClientSide, client: Address) -> BackendChoice:
    """lb_service_choose() for a client that is in the source ranges."""
    slots = _range_of(desc, side)
    backends = lookups.backends(slots)
    recalled, affinity = _affinity(lookups, desc, slots, client)
    if recalled:
        chosen = tuple(Candidate(each, float(each == recalled)) for each in backends)
        return BackendChoice(None, chosen, affinity)
    if not backends:
        drops = slots.if_empty == IfEmptyCode.LB_EMPTY_DROP and not slots.length
        no_local, none = DropReason.LB_DROP_NO_LOCAL_ENDPOINT, DropReason.LB_DROP_NO_ENDPOINT
        return BackendChoice(no_local if drops else none, affinity=affinity)
    even = tuple(Candidate(each, 1 / len(backends)) for each in backends)
    return BackendChoice(None, even, affinity)


def _affinity(
    lookups: Lookups, desc: DescRecord, slots: SlotRange, client: Address
) -> tuple[IndexedBackend | None, str]:
    if not desc.affinity_timeout:
        return None, ""
    entry = lookups.affinity_of(desc, client)
    if entry is None:
        return None, "the client has no entry and keeps the endpoint that it gets now"
    age = seconds_since(entry.last_used)
    recalled = lookups.affinity_recall(entry, desc.affinity_timeout, slots)
    if recalled:
        address, port, _ = backend_key(recalled.record)
        backend = socket_address(format_address(address), port)
        return recalled, f"stays with {backend}, last used {age:.0f} s ago"
    if age >= desc.affinity_timeout:
        return None, f"the client's entry has expired, last used {age:.0f} s ago"
    return None, "the client's last endpoint can no longer be chosen"


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
    is_local = _is_local(backend)
    is_elsewhere = client.kind is ClientKind.OUTSIDE and not is_local
    if is_elsewhere or _must_masquerade(lookups, desc, address, is_local):
        return _masquerade(lookups, address, is_local, route)
    return Rewrite()


def _hairpin(lookups: Lookups, address: Address) -> Rewrite:
    """A pod that reaches itself sees the node's address as the source."""
    found = _source(lookups.node_address(family_of(address)))
    return found._replace(hairpin=found.reason is None)


def _must_masquerade(lookups: Lookups, desc: DescRecord, address: Address, is_local: bool) -> bool:
    if not desc.flags & DescFlag.LB_DESC_MASQUERADE:
        return False
    return not (is_local and lookups.addr_flags_of(address) & AddrFlag.LB_ADDR_NODE)


def _masquerade(lookups: Lookups, address: Address, is_local: bool, route: RouteTo) -> Rewrite:
    way = route(address)
    if way is None or way.is_local:
        return _NO_ROUTE
    family = family_of(address)
    if is_local:
        return _source(lookups.node_address(family))
    return _source(lookups.masquerade_source(way.ifindex, family) or Address(bytes(16)))


def _source(source: Address) -> Rewrite:
    return Rewrite(source) if any(source) else Rewrite(reason=DropReason.LB_DROP_NO_SNAT_ADDRESS)
