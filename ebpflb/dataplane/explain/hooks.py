# SPDX-License-Identifier: Apache-2.0
"""What each hook would do with a new connection, in the order of its steps in bpf/."""

from collections.abc import Iterator
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.explain.choice import Picked, pick
from ebpflb.dataplane.explain.known_flow import known_flow
from ebpflb.dataplane.explain.lookups import Chosen, Lookups, backend_key, is_own_host
from ebpflb.dataplane.explain.steps import (
    WORDS,
    Client,
    ClientKind,
    Fate,
    Rewrite,
    RouteTo,
    Side,
    Step,
    ended,
    why_no_frontend,
)
from ebpflb.dataplane.kernel.routes import device_name
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    BackendFlag,
    DescFlag,
    DeviceKind,
    DropReason,
    FrontendType,
    NetnsFlag,
    SettingFlag,
)
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address, Family, Protocol, family_of
from ebpflb.model.plan import FrontendKey

_OURS = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL | AddrFlag.LB_ADDR_NODE
_NO_ROUTE = Rewrite(reason=DropReason.LB_DROP_NO_ROUTE)


def at_socket(lookups: Lookups, client: Client, target: FrontendKey) -> Step:
    """lb_socket_select(): connect(), and sendmsg() of a socket that has not sent there before."""
    place = "socket hook"
    if target.protocol is Protocol.SCTP:
        return Step(place, Fate.PASSES, "SCTP is translated at tc only")
    desc, is_refused = _socket_match(lookups, client, target)
    if desc is None and not is_refused:
        return Step(place, Fate.PASSES, why_no_frontend(lookups, target))
    if not _socket_is_ours(lookups, client, target):
        return Step(place, Fate.PASSES, "pods under tc cover are translated there", desc)
    if desc is None:
        return ended(place, None, DropReason.LB_DROP_UNKNOWN_PORT)
    return _socket_client(lookups, client, desc, place) or _socket_choose(
        lookups, client, target, desc
    )


def _socket_match(
    lookups: Lookups, client: Client, key: FrontendKey
) -> tuple[DescRecord | None, bool]:
    """The frontend, or whether the port is refused.

    lb_socket_may_be_service(), lb_socket_match().
    """
    if is_own_host(key.address):
        is_host = client.netns_flags & NetnsFlag.LB_NETNS_HOST
        accepts = lookups.has_setting(SettingFlag.LB_SETTING_LOCALHOST)
        is_ipv4 = family_of(key.address) is Family.IPV4
        return lookups.node_port_lookup(key) if is_host and accepts and is_ipv4 else None, False
    if not lookups.filter_flags(key.address) & _OURS:
        return None, False
    found = lookups.frontend_lookup(key)
    flags = lookups.addr_flags_of(key.address)
    if found is None and flags & AddrFlag.LB_ADDR_NODE_PORT:
        found = lookups.node_port_lookup(key)
    return found, found is None and bool(flags & AddrFlag.LB_ADDR_CLUSTER_IP)


def _socket_is_ours(lookups: Lookups, client: Client, key: FrontendKey) -> bool:
    everybody = not lookups.has_setting(SettingFlag.LB_SETTING_SOCKET_HOST)
    if key.protocol is Protocol.TCP and everybody:
        return True
    return not client.netns_flags & NetnsFlag.LB_NETNS_COVERED


def _socket_client(lookups: Lookups, client: Client, desc: DescRecord, place: str) -> Step | None:
    """lb_socket_check_client() and lb_source_range_of_socket(); None: go on."""
    has_ranges = desc.flags & DescFlag.LB_DESC_SOURCE_RANGES
    if not (has_ranges or desc.affinity_timeout or desc.flags & DescFlag.LB_DESC_MASQUERADE):
        return None
    if client.netns_flags & NetnsFlag.LB_NETNS_COVERED:
        why = "left to tc, because the client's address decides"
        return Step(place, Fate.PASSES, why, desc, Side.THIS_NODE)
    if not has_ranges:
        return None
    reason = DropReason.LB_DROP_SOURCE_RANGE
    if not client.netns_flags & NetnsFlag.LB_NETNS_HOST:
        why = "the address of a pod without tc cover is not known, and so in no source range"
        return Step(place, Fate.REFUSED, why, desc, Side.THIS_NODE, reason)
    if lookups.is_allowed(desc, lookups.node_address(family_of(desc.address))):
        return None
    why = f"{WORDS[reason]}; left to tc, which drops"
    return Step(place, Fate.PASSES, why, desc, Side.THIS_NODE, reason)


def _socket_choose(lookups: Lookups, client: Client, target: FrontendKey, desc: DescRecord) -> Step:
    place, side = "socket hook", Side.THIS_NODE
    picked = pick(lookups, desc, side, client_of_socket(lookups, client, target.address))
    if picked.reason is DropReason.LB_DROP_NO_LOCAL_ENDPOINT:
        why = f"{WORDS[picked.reason]}; left to tc, which drops"
        return Step(place, Fate.PASSES, why, desc, side, picked.reason)
    if picked.reason:
        return ended(place, desc, picked.reason, side)
    found = picked.candidates
    return Step(place, Fate.TRANSLATED, "", desc, side, None, found, picked.affinity)


def client_of_socket(lookups: Lookups, client: Client, peer: Address) -> Address:
    """Who the client is for session affinity (sock_client.h)."""
    family = family_of(peer)
    if client.netns_flags & NetnsFlag.LB_NETNS_HOST:
        return lookups.node_address(family)
    cookie = client.cookie.to_bytes(8, byteorder)
    return Address(bytes(4) + int(family).to_bytes(4, "big") + cookie)


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


def walk(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> tuple[Step, ...]:
    """Every hook that the connection meets, until one translates it or ends it."""
    steps = []
    for step in _ways(lookups, client, target, route):
        steps.append(step)
        if step.fate is not Fate.PASSES:
            break
    return tuple(steps)


def _ways(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Iterator[Step]:
    if client.kind is not ClientKind.OUTSIDE:
        yield at_socket(lookups, client, target)
    if client.kind is not ClientKind.HOST:
        yield at_ingress(lookups, client, target, route)
    yield at_egress(lookups, client, target, route)


def at_ingress(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Step:
    """lb_pod_ingress or lb_host_ingress: where the client's packets come to this node."""
    is_pod = client.kind is ClientKind.POD
    kind = DeviceKind.LB_DEVICE_WORKLOAD if is_pod else DeviceKind.LB_DEVICE_HOST
    device = lookups.device(client.ifindex) if client.ifindex else None
    name = device_name(client.ifindex) if client.ifindex else "an unknown device"
    place = f"tc ingress of {name}"
    if device is None or device.kind != kind:
        whose = "--workload-devices" if is_pod else "--host-devices"
        return Step(place, Fate.PASSES, f"none of our programs is there ({whose})")
    side = Side.THIS_NODE if is_pod else Side.ELSEWHERE
    return at_tc(Asked(lookups, client, target, route), place, side)


def at_egress(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Step:
    """lb_host_egress: what leaves the node and was not translated so far."""
    way = route(target.address)
    if way is None:
        return Step("routing", Fate.PASSES, "this node has no route there")
    if way.is_local:
        return Step("routing", Fate.PASSES, "an address of this node: up to whoever listens there")
    place = f"tc egress of {device_name(way.ifindex)}"
    device = lookups.device(way.ifindex)
    if device is None or device.kind != DeviceKind.LB_DEVICE_HOST:
        return Step(place, Fate.PASSES, "no program of ours translates there; goes on as it is")
    is_own = client.kind is ClientKind.HOST
    if lookups.is_unused(target.address) and not (is_own and lookups.is_known(target.address)):
        return ended(place, None, DropReason.LB_DROP_UNUSED_ADDRESS)
    if not is_own:
        return Step(place, Fate.PASSES, "goes on as it is")
    return at_tc(Asked(lookups, client, target, route), place, Side.THIS_NODE)
