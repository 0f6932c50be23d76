# SPDX-License-Identifier: Apache-2.0
"""The node's own addresses: which of them accept NodePorts, and where its servers listen."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from ebpflb.dataplane.kernel.rtnetlink import InterfaceAddress
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.model.address import (
    Address,
    Family,
    family_of,
    format_address,
    is_loopback,
    parse_address,
)

ListenAddresses = Mapping[Family, Sequence[str]]

LOCALHOST = parse_address("127.0.0.1")

_ANY = {Family.IPV4: "0.0.0.0", Family.IPV6: "::"}
# RT_SCOPE_LINK: binding to such an address requires naming the device.
_LINK_SCOPE = 253


def node_addresses(
    addresses: Iterable[InterfaceAddress], accepts: Callable[[Address], bool]
) -> dict[Address, AddrFlag]:
    """The addresses at which the node can be reached, and which of them accept NodePorts."""
    plain, serving = AddrFlag.LB_ADDR_NODE, AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
    reachable = (found.address for found in addresses if not is_loopback(found.address))
    return {address: serving if accepts(address) else plain for address in reachable}


def node_port_filter(
    wanted: Sequence[str], primary: Mapping[Family, Address]
) -> Callable[[Address], bool]:
    """Whether an address accepts NodePorts, by kube-proxy's rules for nodePortAddresses.

    A family without a CIDR in `wanted` accepts them at all of its addresses.
    """
    if "primary" in wanted:
        return lambda address: address == primary.get(family_of(address))
    networks: dict[Family, list[IPv4Network | IPv6Network]] = {}
    for text in wanted:
        network = ip_network(text, strict=False)
        networks.setdefault(Family(network.version), []).append(network)

    def accepts(address: Address) -> bool:
        candidates = networks.get(family_of(address))
        ip = ip_address(format_address(address))
        return candidates is None or any(ip in network for network in candidates)

    return accepts


def named_addresses(cidrs: Iterable[str], addresses: Iterable[InterfaceAddress]) -> ListenAddresses:
    """The addresses that match the CIDRs, by family; "any" for a family without a CIDR, or with /0.

    Unlike for NodePorts, these may be loopback addresses.
    """
    networks = [ip_network(text, strict=False) for text in cidrs]
    named = {Family(network.version) for network in networks}
    named -= {Family(network.version) for network in networks if not network.prefixlen}
    accepts = node_port_filter([str(network) for network in networks], {})
    usable = [found for found in addresses if found.scope != _LINK_SCOPE and accepts(found.address)]
    some = {
        family: [format_address(found.address) for found in usable if found.family is family]
        for family in named
    }
    return {family: some.get(family, [everywhere]) for family, everywhere in _ANY.items()}


def bound_address(text: str) -> dict[Family, Address]:
    """The primary address given by --bind-address."""
    if not text or ip_address(text).is_unspecified:
        return {}
    address = parse_address(text)
    return {family_of(address): address}
