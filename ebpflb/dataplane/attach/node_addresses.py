# SPDX-License-Identifier: Apache-2.0
"""The node's own addresses: which there are, and which of them accept NodePorts."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network

from ebpflb.dataplane.kernel.interfaces import InterfaceAddress
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.model.address import Address, Family, family_of, format_address, parse_address

LOCALHOST = parse_address("127.0.0.1")

_LOOPBACK_4 = bytes(10) + b"\xff\xff\x7f"
_LOOPBACK_6 = bytes(15) + b"\1"


def node_addresses(
    addresses: Iterable[InterfaceAddress], accepts: Callable[[Address], bool]
) -> dict[Address, AddrFlag]:
    """The addresses at which the node can be reached, and which of them accept NodePorts."""
    plain, serving = AddrFlag.LB_ADDR_NODE, AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
    reachable = (found.address for found in addresses if not _is_loopback(found.address))
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


def bound_address(text: str) -> dict[Family, Address]:
    """What --bind-address says of the primary address."""
    if not text or ip_address(text).is_unspecified:
        return {}
    address = parse_address(text)
    return {family_of(address): address}


def _is_loopback(address: Address) -> bool:
    return address.startswith(_LOOPBACK_4) or address == _LOOPBACK_6
