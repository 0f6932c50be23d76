# SPDX-License-Identifier: Apache-2.0
"""lb_service_nets: the networks in which an address without a Service is nobody's."""

from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.structs import Addr, Net4, Net6, ServiceNets

_KEY = bytes(4)
_ROOM = len(ServiceNets().ipv4)


def write_service_nets(target: BpfMap, ranges: Iterable[str]) -> list[str]:
    """Write these CIDRs where that makes a difference. Returns those for which there is no room.

    A range that holds all addresses is none. MapError.
    """
    networks = [ip_network(text) for text in ranges]
    ipv4 = list(collapse_addresses(each for each in networks if isinstance(each, IPv4Network)))
    ipv6 = list(collapse_addresses(each for each in networks if isinstance(each, IPv6Network)))
    wanted = ServiceNets()
    for place4, network4 in enumerate(ipv4[:_ROOM]):
        wanted.ipv4[place4] = Net4(int(network4.network_address), int(network4.netmask))
    for place6, network6 in enumerate(ipv6[:_ROOM]):
        wanted.ipv6[place6] = Net6(
            Addr.from_buffer_copy(network6.network_address.packed),
            Addr.from_buffer_copy(network6.netmask.packed),
        )
    if target.lookup(_KEY) != bytes(wanted):
        target.update(_KEY, bytes(wanted))
    return [str(each) for each in (*ipv4[_ROOM:], *ipv6[_ROOM:])]
