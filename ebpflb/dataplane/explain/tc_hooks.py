# SPDX-License-Identifier: Apache-2.0
"""What a program at tc would do with a packet that opens a flow: bpf/service.h, in its order."""

from typing import NamedTuple

from ebpflb.dataplane.explain.choice import Picked, pick
from ebpflb.dataplane.explain.explained import (
    Client,
    ClientKind,
    Fate,
    Rewrite,
    RouteTo,
    Side,
    Step,
)
from ebpflb.dataplane.explain.known_flow import known_flow
from ebpflb.dataplane.explain.lookups import Chosen, Lookups, backend_key
from ebpflb.dataplane.explain.words import WORDS, ended, why_no_frontend
from ebpflb.dataplane.layout.enums import AddrFlag, BackendFlag, DescFlag, DropReason, FrontendType
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address, family_of
from ebpflb.model.plan import FrontendKey

_NO_ROUTE = Rewrite(reason=DropReason.LB_DROP_NO_ROUTE)


class Asked(NamedTuple):
    """A packet from `client` to `target`, and what decides about it."""

    lookups: Lookups
    client: Client
    target: FrontendKey
    route: RouteTo


def at_tc(asked: Asked, place: str, side: Side) -> Step:
    """lb_known_flow(), then lb_new_flow()."""
    lookups, client, target, _ = asked
    if not lookups.may_be_request(target):
        return Step(place, Fate.PASSES, why_no_frontend(lookups, target))
    flow = known_flow(lookups, client, target)
    if flow:
        return Step(place, flow.fate, flow.why, candidates=flow.candidates)
    desc, is_refused = _service_match(lookups, target)
    if is_refused:
        return ended(place, None, DropReason.LB_DROP_UNKNOWN_PORT)
    if desc is None:
        return Step(place, Fate.PASSES, why_no_frontend(lookups, target))
    return _select(asked, place, side, desc)


def _select(asked: Asked, place: str, side: Side, desc: DescRecord) -> Step:
    """lb_service_select(), then lb_service_route()."""
    source = _source(asked.lookups, asked.client, asked.target)
    if not asked.lookups.is_allowed(desc, source):
        return ended(place, desc, DropReason.LB_DROP_SOURCE_RANGE, side)
    picked = pick(asked.lookups, desc, side, source)
    if picked.reason:
        return ended(place, desc, picked.reason, side)
    return _routed(asked, place, side, desc, picked)


def _service_match(lookups: Lookups, key: FrontendKey) -> tuple[DescRecord | None, bool]:
    """lb_service_match(): the frontend, or whether the port is refused."""
    found = _service_match_vip(lookups, key)
    flags = lookups.addr_flags_of(key.address)
    if found is None and flags & AddrFlag.LB_ADDR_NODE_PORT:
        found = lookups.node_port_lookup(key)
    is_cluster_ip = flags & AddrFlag.LB_ADDR_CLUSTER_IP and not flags & AddrFlag.LB_ADDR_NODE
    return found, found is None and bool(is_cluster_ip)


def _service_match_vip(lookups: Lookups, key: FrontendKey) -> DescRecord | None:
    """lb_service_match_vip()."""
    known = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL
    found = lookups.frontend_lookup(key) if lookups.filter_flags(key.address) & known else None
    return found if found and found.type != FrontendType.LB_NODE_PORT else None


def _source(lookups: Lookups, client: Client, target: FrontendKey) -> Address:
    """What the packet has as its source."""
    if client.kind is ClientKind.HOST:
        return lookups.node_address(family_of(target.address))
    return client.address


def _routed(asked: Asked, place: str, side: Side, desc: DescRecord, picked: Picked) -> Step:
    """lb_service_route(), for each backend that may be chosen."""
    found = tuple(
        each._replace(rewrite=_rewrite(asked, desc, each.backend)) for each in picked.candidates
    )
    reasons = {each.rewrite.reason for each in found if each.chance}
    if None not in reasons:
        reason = min(each for each in reasons if each)
        return Step(place, Fate.DROPPED, WORDS[reason], desc, side, reason, found)
    return Step(place, Fate.TRANSLATED, "", desc, side, None, found, picked.affinity)


def _rewrite(asked: Asked, desc: DescRecord, chosen: Chosen) -> Rewrite:
    """lb_service_from_pod(), lb_service_from_outside(), lb_service_from_host()."""
    lookups, client, _, route = asked
    address = backend_key(chosen.record).address
    if client.kind is ClientKind.HOST:
        return Rewrite() if _is_routed(route, address) else _NO_ROUTE
    if client.kind is ClientKind.POD and address == client.address:
        return _from(lookups.node_address(family_of(address)), hairpin=True)
    is_local = bool(chosen.record.flags & BackendFlag.LB_BACKEND_LOCAL)
    is_elsewhere = client.kind is ClientKind.OUTSIDE and not is_local
    if is_elsewhere or _must_masquerade(lookups, desc, address, is_local):
        return _masquerade(lookups, address, is_local, route)
    return Rewrite()


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
        return _from(lookups.node_address(family))
    return _from(lookups.masquerade_source(way.ifindex, family) or Address(bytes(16)))


def _is_routed(route: RouteTo, address: Address) -> bool:
    way = route(address)
    return way is not None and not way.is_local


def _from(source: Address, *, hairpin: bool = False) -> Rewrite:
    if not any(source):
        return Rewrite(reason=DropReason.LB_DROP_NO_SNAT_ADDRESS)
    return Rewrite(source, hairpin)
