# SPDX-License-Identifier: Apache-2.0
"""Who a client is, by its address: this node, one of its pods, or neither."""

from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.steps import Client, ClientKind, RouteTo
from ebpflb.dataplane.kernel.namespaces import own_cookie, visit_others
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink, read_addresses
from ebpflb.dataplane.layout.enums import AddrFlag, DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.structs import LbNetns
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Family


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
    """Who has an address. MapError, ProbeError.

    An address behind a device without ebpflb's programs is a pod's if a network namespace of this
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
    """The pod that has an address, if the route to it does not show that, as with a bridge."""
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
