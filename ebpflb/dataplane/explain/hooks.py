# SPDX-License-Identifier: Apache-2.0
"""Which client it is, and what each hook would do with its connection, in the order of bpf/."""

from collections.abc import Iterator
from dataclasses import replace
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.explain.choice import (
    BackendChoice,
    Hashed,
    choose,
    in_source_ranges,
    rewrite,
)
from ebpflb.dataplane.explain.known_flow import HOOKS, known_flow
from ebpflb.dataplane.explain.limits import Excess, client_excess, told
from ebpflb.dataplane.explain.lookups import Lookups, backend_key, is_own_host
from ebpflb.dataplane.explain.steps import (
    LISTENER,
    NO_LOCAL_PASSES,
    Client,
    ClientKind,
    ClientSide,
    RouteTo,
    Step,
    ended,
    why_no_frontend,
)
from ebpflb.dataplane.explain.vip import unserved
from ebpflb.dataplane.kernel.namespaces import own_cookie, visit_others
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink, device_name, read_addresses
from ebpflb.dataplane.layout.enums import (
    AddrFlag,
    DescFlag,
    DeviceFlag,
    DeviceKind,
    DropReason,
    FrontendTypeCode,
    NetnsFlag,
    SettingFlag,
)
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.dataplane.layout.structs import LbNetns
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Family, Protocol, family_of
from ebpflb.model.plan import FrontendKey
from ebpflb.words.connections import SOCKET_HOOK, Fate

# Larger than the numbers of clients' bits.
_NO_TRIER = 64


class _Pod(NamedTuple):
    """A pod's network namespace, from lb_netns."""

    cookie: int
    flags: NetnsFlag
    ifindex: int


def host_client(lookups: Lookups, family: Family, port: int = 0) -> Client:
    """A process of this node."""
    flags = NetnsFlag.LB_NETNS_HOST
    return Client(ClientKind.HOST, lookups.node_address(family), flags, port=port)


def client_at(
    lookups: Lookups, address: Address, family: Family, port: int, route: RouteTo
) -> Client:
    """The client that has an address. MapError, ProbeError.

    An address behind a device without ebpflb's programs is a pod's if a network namespace on this
    machine has it.
    """
    way = route(address)
    is_own = lookups.addr_flags_of(address) & AddrFlag.LB_ADDR_NODE
    if is_own or (way and way.is_local):
        return host_client(lookups, family, port)
    ifindex = way.ifindex if way else 0
    device = lookups.device(ifindex) if ifindex else None
    if device is None:
        pod = _behind_no_device(lookups, address)
        if pod:
            return Client(ClientKind.POD, address, pod.flags, pod.cookie, pod.ifindex, port)
    if device is None or device.kind == DeviceKind.LB_DEVICE_HOST:
        return Client(ClientKind.OUTSIDE, address, ifindex=ifindex, port=port)
    pod = _behind(lookups, ifindex)
    return Client(ClientKind.POD, address, pod.flags, pod.cookie, ifindex, port)


def _behind(lookups: Lookups, ifindex: int) -> _Pod:
    """The pod behind a workload device; without flags if its namespace is not in lb_netns."""
    for key, value in lookups.maps["lb_netns"].items():
        netns = LbNetns.from_buffer_copy(value)
        if netns.flags & NetnsFlag.LB_NETNS_COVERED and netns.ifindex == ifindex:
            return _Pod(int.from_bytes(key, byteorder), NetnsFlag(netns.flags), ifindex)
    return _Pod(0, NetnsFlag(0), ifindex)


def _behind_no_device(lookups: Lookups, address: Address) -> _Pod | None:
    """The pod with an address, if the route does not show it, as with a bridge."""
    cookies: list[int] = []

    def look() -> bool:
        with Rtnetlink() as netlink:
            has = any(each.address == address for each in read_addresses(netlink))
        if has:
            cookies.append(own_cookie())
        return has

    try:
        visit_others(look)
    except OSError as error:
        raise ProbeError(f"cannot look into network namespaces: {error}") from error
    if not cookies:
        return None
    value = lookups.maps["lb_netns"].lookup(cookies[0].to_bytes(8, byteorder))
    netns = LbNetns.from_buffer_copy(value) if value else LbNetns()
    return _Pod(cookies[0], NetnsFlag(netns.flags), netns.ifindex)


_LOCALHOST = {
    Family.IPV4: SettingFlag.LB_SETTING_LOCALHOST,
    Family.IPV6: SettingFlag.LB_SETTING_LOCALHOST6,
}
_SERVICE_FLAGS = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL | AddrFlag.LB_ADDR_NODE


def at_socket(lookups: Lookups, client: Client, target: FrontendKey) -> Step:
    """lb_socket_select(): connect(), or the first sendmsg() of a socket to this destination."""
    place = SOCKET_HOOK
    if target.protocol is Protocol.SCTP:
        return Step(place, Fate.PASSES, "SCTP is translated at tc only")
    desc, is_refused = _socket_match(lookups, client, target)
    why = _left_to_listener(lookups, client, target)
    if why:
        return Step(place, Fate.PASSES, why, desc)
    if desc is None and not is_refused:
        return Step(place, Fate.PASSES, why_no_frontend(lookups, target))
    if not _is_for_socket(lookups, client, target):
        return Step(place, Fate.PASSES, "left to tc, which serves this pod", desc)
    if desc is None:
        return _socket_refuse(lookups, client, target, None, DropReason.LB_DROP_UNKNOWN_PORT)
    return _socket_client(lookups, client, desc, place) or _socket_choose(
        lookups, client, target, desc
    )


def _socket_refuse(
    lookups: Lookups,
    client: Client,
    key: FrontendKey,
    desc: DescRecord | None,
    reason: DropReason,
) -> Step:
    """lb_socket_refuse(), for connect()."""
    place, side = SOCKET_HOOK, ClientSide.THIS_NODE if desc else None
    is_here = is_own_host(key.address) or lookups.filter_flags(key.address) & AddrFlag.LB_ADDR_NODE
    goes_to_tc = not is_here and client.netns_flags & NetnsFlag.LB_NETNS_HOST
    if key.protocol is Protocol.UDP and (desc is None or goes_to_tc):
        why = f"{reason.sentence}; connect() succeeds, and tc refuses the first datagram"
        return Step(place, Fate.PASSES, why, desc, side, reason)
    return ended(place, desc, reason, side)


def _left_to_listener(lookups: Lookups, client: Client, target: FrontendKey) -> str:
    """lb_socket_is_left_to_listener(): why the connection passes, or ""."""
    if not lookups.is_cluster_ip_of_node(target.address):
        return ""
    if client.netns_flags & NetnsFlag.LB_NETNS_COVERED:
        return "also an address of the node: left to tc, which checks for a listening process"
    is_host = client.netns_flags & NetnsFlag.LB_NETNS_HOST
    return LISTENER if is_host and lookups.has_listener(target) else ""


def _socket_match(
    lookups: Lookups, client: Client, key: FrontendKey
) -> tuple[DescRecord | None, bool]:
    """The frontend, and whether the port is refused.

    lb_socket_may_be_service(), lb_socket_match().
    """
    if is_own_host(key.address):
        is_host = client.netns_flags & NetnsFlag.LB_NETNS_HOST
        accepts = lookups.has_setting(_LOCALHOST[family_of(key.address)])
        return lookups.node_port_lookup(key) if is_host and accepts else None, False
    if not lookups.filter_flags(key.address) & _SERVICE_FLAGS:
        return None, False
    found = lookups.frontend_lookup(key)
    flags = lookups.addr_flags_of(key.address)
    if found is None and flags & AddrFlag.LB_ADDR_NODE_PORT:
        found = lookups.node_port_lookup(key)
    return found, found is None and _refuses(flags)


def _refuses(flags: AddrFlag) -> bool:
    """Whether ports without a frontend are refused; not for the node's own addresses."""
    return bool(flags & AddrFlag.LB_ADDR_CLUSTER_IP and not flags & AddrFlag.LB_ADDR_NODE)


def _is_for_socket(lookups: Lookups, client: Client, key: FrontendKey) -> bool:
    left_to_tc = NetnsFlag.LB_NETNS_COVERED
    everybody = not lookups.has_setting(SettingFlag.LB_SETTING_SOCKET_HOST)
    if key.protocol is Protocol.TCP and everybody:
        left_to_tc = NetnsFlag.LB_NETNS_TC_ONLY
    return not client.netns_flags & left_to_tc


def _socket_client(lookups: Lookups, client: Client, desc: DescRecord, place: str) -> Step | None:
    """lb_socket_check_client() and lb_source_range_of_socket(); None: continue."""
    has_ranges = desc.flags & DescFlag.LB_DESC_SOURCE_RANGES
    needs_client = has_ranges or desc.affinity_timeout or desc.flags & DescFlag.LB_DESC_MASQUERADE
    needs_client = needs_client or lookups.limits(desc).are_of_clients
    if not needs_client and not desc.flags & DescFlag.LB_DESC_RETRY:
        return None
    if client.netns_flags & NetnsFlag.LB_NETNS_COVERED:
        reads = "the client's address decides" if needs_client else "connections are retried there"
        why = f"left to tc, because {reads}"
        return Step(place, Fate.PASSES, why, desc, ClientSide.THIS_NODE)
    if not has_ranges:
        return None
    reason = DropReason.LB_DROP_SOURCE_RANGE
    if not client.netns_flags & NetnsFlag.LB_NETNS_HOST:
        why = "the address of a pod not served by tc is unknown, and so outside all source ranges"
        return Step(place, Fate.REFUSED, why, desc, ClientSide.THIS_NODE, reason)
    if in_source_ranges(lookups, desc, lookups.node_address(family_of(desc.address))):
        return None
    why = f"{reason.sentence}; left to tc, which drops"
    return Step(place, Fate.PASSES, why, desc, ClientSide.THIS_NODE, reason)


def _socket_choose(lookups: Lookups, client: Client, target: FrontendKey, desc: DescRecord) -> Step:
    place, side = SOCKET_HOOK, ClientSide.THIS_NODE
    address = _affinity_client(lookups, client, target.address)
    is_known = client.netns_flags & NetnsFlag.LB_NETNS_HOST or client.cookie
    bit = 1 << (client.cookie % 64 if client.cookie else _NO_TRIER)
    hashed = Hashed(address if is_known else None, None, bit)
    choice = choose(lookups, desc, side, address, hashed)
    if choice.passes:
        return Step(place, Fate.PASSES, NO_LOCAL_PASSES, desc, side)
    if choice.reason is DropReason.LB_DROP_NO_LOCAL_ENDPOINT:
        why = f"{choice.reason.sentence}; left to tc, which drops"
        return Step(place, Fate.PASSES, why, desc, side, choice.reason)
    if choice.excess:
        does = "drops" if choice.excess.is_dropped else "refuses"
        why = f"{choice.excess.why}; left to tc, which {does}"
        return Step(place, Fate.PASSES, why, desc, side, choice.reason)
    if choice.reason:
        return _socket_refuse(lookups, client, target, desc, choice.reason)
    found, limits = choice.candidates, told(lookups, desc, address, None)
    said = choice.affinity, choice.scheduler, limits
    return Step(place, Fate.TRANSLATED, "", desc, side, None, found, *said)


def _affinity_client(lookups: Lookups, client: Client, peer: Address) -> Address:
    """The client's key for session affinity (sock_client.h)."""
    family = family_of(peer)
    if client.netns_flags & NetnsFlag.LB_NETNS_HOST:
        return lookups.node_address(family)
    cookie = client.cookie.to_bytes(8, byteorder)
    return Address(bytes(4) + int(family).to_bytes(4, "big") + cookie)


class _Packet(NamedTuple):
    """A packet from `client` to `target` that opens a flow, and what its fate depends on."""

    lookups: Lookups
    client: Client
    target: FrontendKey
    route: RouteTo


def _at_tc(packet: _Packet, place: str, side: ClientSide) -> Step:
    """lb_known_flow(), then lb_new_flow()."""
    lookups, client, target = packet[:3]
    if not lookups.may_be_request(target):
        return Step(place, Fate.PASSES, why_no_frontend(lookups, target))
    flow = known_flow(lookups, client, target)
    if flow:
        return Step(place, flow.fate, flow.why, candidates=flow.candidates)
    desc = _service_match(lookups, target)
    if lookups.has_listener(target):
        return Step(place, Fate.PASSES, LISTENER, desc)
    reason = None if desc else unserved(lookups, client, target.address, packet.route)
    if reason:
        return ended(place, None, reason)
    if desc is None:
        return Step(place, Fate.PASSES, why_no_frontend(lookups, target))
    return _select(packet, place, side, desc)


def _select(packet: _Packet, place: str, side: ClientSide, desc: DescRecord) -> Step:
    """lb_service_select(), then lb_service_route()."""
    source = _source(packet)
    if not in_source_ranges(packet.lookups, desc, source):
        return ended(place, desc, DropReason.LB_DROP_SOURCE_RANGE, side)
    hook = HOOKS[packet.client.kind]
    if excess := client_excess(packet.lookups, desc, source, hook):
        return _over(place, desc, side, excess)
    bit = packet.lookups.client_bit(desc, source, hook)
    hashed = Hashed(source, packet.client.port or None, bit)
    choice = choose(packet.lookups, desc, side, source, hashed)
    if choice.passes:
        return Step(place, Fate.PASSES, NO_LOCAL_PASSES, desc, side)
    if choice.excess:
        return _over(place, desc, side, choice.excess)
    if choice.reason:
        return ended(place, desc, choice.reason, side)
    routed = _routed(packet, place, side, desc, choice)
    return replace(routed, limits=told(packet.lookups, desc, source, hook))


def _over(place: str, desc: DescRecord, side: ClientSide, excess: Excess) -> Step:
    fate = Fate.DROPPED if excess.is_dropped else Fate.REFUSED
    return Step(place, fate, excess.why, desc, side, excess.reason)


def _service_match(lookups: Lookups, key: FrontendKey) -> DescRecord | None:
    """lb_service_match(): the frontend."""
    found = _service_match_vip(lookups, key)
    flags = lookups.addr_flags_of(key.address)
    if found is None and flags & AddrFlag.LB_ADDR_NODE_PORT:
        found = lookups.node_port_lookup(key)
    return found


def _service_match_vip(lookups: Lookups, key: FrontendKey) -> DescRecord | None:
    """lb_vip_lookup()."""
    known = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL
    found = lookups.frontend_lookup(key) if lookups.filter_flags(key.address) & known else None
    return found if found and found.type != FrontendTypeCode.LB_NODE_PORT else None


def _source(packet: _Packet) -> Address:
    lookups, client, target, _ = packet
    if client.kind is ClientKind.HOST:
        return lookups.node_address(family_of(target.address))
    return client.address


def _routed(
    packet: _Packet, place: str, side: ClientSide, desc: DescRecord, choice: BackendChoice
) -> Step:
    """lb_service_route(), for each backend that may be chosen."""
    lookups, client, _, route = packet
    found = tuple(
        each._replace(rewrite=rewrite(lookups, client, desc, each.backend, route))
        for each in choice.candidates
    )
    reasons = {each.rewrite.reason for each in found if each.chance}
    if None not in reasons:
        reason = min(each for each in reasons if each)
        return Step(place, Fate.DROPPED, reason.sentence, desc, side, reason, found)
    return Step(
        place, Fate.TRANSLATED, "", desc, side, None, found, choice.affinity, choice.scheduler
    )


def walk(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> tuple[Step, ...]:
    """What each hook on the way does, until one translates the connection or ends it."""
    steps = []
    for step in _ways(lookups, client, target, route):
        steps.append(_routed_on(step, route))
        if step.fate is not Fate.PASSES:
            break
    return tuple(steps)


def _routed_on(step: Step, route: RouteTo) -> Step:
    """What happens to a translated connection if the kernel routes it."""
    if step.fate is not Fate.TRANSLATED:
        return step
    reason = DropReason.LB_DROP_NO_ROUTE
    found = tuple(
        each
        if each.rewrite.reason
        or each.rewrite.node
        or route(backend_key(each.backend.record).address)
        else each._replace(rewrite=each.rewrite._replace(reason=reason))
        for each in step.candidates
    )
    if any(each.chance and not each.rewrite.reason for each in found):
        return replace(step, candidates=found)
    why = f"translated, but {reason.sentence}"
    return replace(step, fate=Fate.DROPPED, why=why, reason=reason, candidates=found)


def _ways(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Iterator[Step]:
    if client.kind is not ClientKind.OUTSIDE:
        yield at_socket(lookups, client, target)
    if client.kind is not ClientKind.HOST:
        yield at_ingress(lookups, client, target, route)
    yield at_egress(lookups, client, target, route)


def at_ingress(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Step:
    """lb_pod_ingress or lb_host_ingress: where the client's packets arrive at this node."""
    is_pod = client.kind is ClientKind.POD
    kind = DeviceKind.LB_DEVICE_WORKLOAD if is_pod else DeviceKind.LB_DEVICE_HOST
    device = lookups.device(client.ifindex) if client.ifindex else None
    name = device_name(client.ifindex) if client.ifindex else "an unknown device"
    place = f"tc ingress of {name}"
    if device is None or device.kind != kind:
        whose = "--workload-devices" if is_pod else "--host-devices"
        return Step(place, Fate.PASSES, f"no ebpflb program is attached here ({whose})")
    side = ClientSide.THIS_NODE if is_pod else ClientSide.ELSEWHERE
    if device.flags & DeviceFlag.LB_DEVICE_XDP:
        place = f"XDP, or {place}"
    return _at_tc(_Packet(lookups, client, target, route), place, side)


def at_egress(lookups: Lookups, client: Client, target: FrontendKey, route: RouteTo) -> Step:
    """lb_host_egress: packets that leave the node and were not translated earlier."""
    way = route(target.address)
    if way is None:
        return Step("routing", Fate.PASSES, "this node has no route there")
    if way.is_local:
        why = "an address of this node: delivered to the local socket"
        return Step("routing", Fate.PASSES, LISTENER if lookups.has_listener(target) else why)
    place = f"tc egress of {device_name(way.ifindex)}"
    device = lookups.device(way.ifindex)
    if device is None or device.kind != DeviceKind.LB_DEVICE_HOST:
        return Step(place, Fate.PASSES, "no ebpflb program is attached here; not translated")
    is_own = client.kind is ClientKind.HOST
    if lookups.is_unused(target.address) and not (is_own and lookups.is_known(target.address)):
        return ended(place, None, DropReason.LB_DROP_UNUSED_ADDRESS)
    if not is_own:
        return Step(place, Fate.PASSES, "not translated")
    return _at_tc(_Packet(lookups, client, target, route), place, ClientSide.THIS_NODE)
