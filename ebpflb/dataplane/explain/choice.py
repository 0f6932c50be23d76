# SPDX-License-Identifier: Apache-2.0
"""Which backends a new connection may get, and with which chance: affinity.h and backend.h."""

from typing import NamedTuple

from ebpflb.address_text import socket_address
from ebpflb.dataplane.explain.lookups import Chosen, Lookups, Range, backend_key, seconds_since
from ebpflb.dataplane.explain.steps import Candidate, Side
from ebpflb.dataplane.layout.enums import DropReason, IfEmpty
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address, format_address


class Picked(NamedTuple):
    """Whom lb_affinity_select() or lb_backend_select() may give, or why nobody."""

    reason: DropReason | None
    candidates: tuple[Candidate, ...] = ()
    affinity: str = ""


def range_of(desc: DescRecord, side: Side) -> Range:
    """The range of a frontend for clients of this node, or for others."""
    if side is Side.THIS_NODE:
        return Range(desc.local_base, desc.local_count, desc.local_if_empty)
    return Range(desc.others_base, desc.others_count, desc.others_if_empty)


def pick(lookups: Lookups, desc: DescRecord, side: Side, client: Address) -> Picked:
    """lb_service_choose() for a client that is in the source ranges."""
    place = range_of(desc, side)
    found = lookups.backends(place)
    recalled, affinity = _affinity(lookups, desc, place, client)
    if recalled:
        chosen = tuple(Candidate(each, float(each == recalled)) for each in found)
        return Picked(None, chosen, affinity)
    if not found:
        drops = place.if_empty == IfEmpty.LB_EMPTY_DROP and not place.length
        no_local, none = DropReason.LB_DROP_NO_LOCAL_ENDPOINT, DropReason.LB_DROP_NO_ENDPOINT
        return Picked(no_local if drops else none, affinity=affinity)
    return Picked(None, tuple(Candidate(each, 1 / len(found)) for each in found), affinity)


def _affinity(
    lookups: Lookups, desc: DescRecord, place: Range, client: Address
) -> tuple[Chosen | None, str]:
    if not desc.affinity_timeout:
        return None, ""
    entry = lookups.affinity_of(desc, client)
    if entry is None:
        return None, "the client has no entry; whom it gets now it keeps"
    age = seconds_since(entry.last_used)
    recalled = lookups.affinity_recall(entry, desc.affinity_timeout, place)
    if recalled:
        address, port, _ = backend_key(recalled.record)
        backend = socket_address(format_address(address), port)
        return recalled, f"stays with {backend}, last used {age:.0f} s ago"
    if age >= desc.affinity_timeout:
        return None, f"the client's entry has ended, last used {age:.0f} s ago"
    return None, "the client's last endpoint may not be chosen any more"
