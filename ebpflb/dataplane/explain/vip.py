# SPDX-License-Identifier: Apache-2.0
"""What becomes of packets to a Service's address that no frontend takes (vip.h)."""

from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.explain.steps import Client, ClientKind, RouteTo
from ebpflb.dataplane.layout.enums import AddrFlag, DeviceKind, DropReason
from ebpflb.model.address import Address

_ASKED = AddrFlag.LB_ADDR_UNSERVED_DROP | AddrFlag.LB_ADDR_UNSERVED_REJECT


def unserved(
    lookups: Lookups, client: Client, address: Address, route: RouteTo
) -> DropReason | None:
    """lb_unserved(): why a new connection to such a port ends here; None: it passes."""
    flags = lookups.addr_flags_of(address)
    if not _is_vip_alone(lookups, client, address, flags, route):
        return None
    is_dropped = flags & AddrFlag.LB_ADDR_UNSERVED_DROP
    if is_dropped and not flags & AddrFlag.LB_ADDR_CLUSTER_IP:
        return DropReason.LB_DROP_UNSERVED_PORT
    return DropReason.LB_DROP_UNKNOWN_PORT


def _is_vip_alone(
    lookups: Lookups, client: Client, address: Address, flags: AddrFlag, route: RouteTo
) -> bool:
    """lb_is_vip_alone()."""
    if flags & AddrFlag.LB_ADDR_NODE:
        return False
    if flags & AddrFlag.LB_ADDR_CLUSTER_IP:
        return True
    if client.kind is not ClientKind.OUTSIDE or not flags & AddrFlag.LB_ADDR_EXTERNAL:
        return False
    if flags & _ASKED:
        return True
    is_passed = flags & AddrFlag.LB_ADDR_UNSERVED_PASS
    return not is_passed and _goes_back(lookups, client, address, route)


def _goes_back(lookups: Lookups, client: Client, address: Address, route: RouteTo) -> bool:
    """lb_goes_back()."""
    way = route(address)
    if way is None or way.is_local:
        return False
    if way.ifindex == client.ifindex:
        return True
    device = lookups.device(way.ifindex)
    return bool(way.gateway and device and device.kind == DeviceKind.LB_DEVICE_HOST)
