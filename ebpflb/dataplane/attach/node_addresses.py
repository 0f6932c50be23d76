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

LOCALHOST_4, LOCALHOST_6 = parse_address("127.0.0.1"), parse_address("::1")

_Network = IPv4Network | IPv6Network

# The words of nodePortAddresses besides primary (KEP-6032).
_WORDS = {"localhost": ["127.0.0.0/8", "::1/128"], "all": ["0.0.0.0/0", "::/0"]}
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

    A family that `wanted` does not name accepts them at all of its addresses.
    """
    return _filter(_networks(wanted, primary))


def is_named(wanted: Sequence[str], address: Address) -> bool:
    """Whether a CIDR or the word localhost names this address, rather than all of its family."""
    networks = _networks(wanted, {}).get(family_of(address), ())
    return _filter({family_of(address): [each for each in networks if each.prefixlen]})(address)


def named_addresses(
    wanted: Sequence[str],
    primary: Mapping[Family, Address],
    addresses: Iterable[InterfaceAddress],
) -> ListenAddresses:
    """The addresses that `wanted` names, by family; "any" for one it does not name, or with /0.

    Unlike for NodePorts, these may be loopback addresses.
    """
    networks = _networks(wanted, primary)
    accepts = _filter(networks)
    usable = [found for found in addresses if found.scope != _LINK_SCOPE and accepts(found.address)]
    some = {
        family: [format_address(found.address) for found in usable if found.family is family]
        for family, each in networks.items()
        if all(network.prefixlen for network in each)
    }
    return {family: some.get(family, [everywhere]) for family, everywhere in _ANY.items()}


def _networks(
    wanted: Iterable[str], primary: Mapping[Family, Address]
) -> dict[Family, list[_Network]]:
    """The networks of each family that `wanted` names: each word names both families."""
    own = [format_address(address) for address in primary.values()]
    words = {**_WORDS, "primary": own}
    networks: dict[Family, list[_Network]] = {}
    for word in wanted:
        if word in words:
            networks = {family: networks.get(family, []) for family in Family}
        for text in words.get(word, [word]):
            network = ip_network(text, strict=False)
            networks.setdefault(Family(network.version), []).append(network)
    return networks


def _filter(networks: Mapping[Family, Sequence[_Network]]) -> Callable[[Address], bool]:
    def accepts(address: Address) -> bool:
        candidates = networks.get(family_of(address))
        ip = ip_address(format_address(address))
        return candidates is None or any(ip in network for network in candidates)

    return accepts


def bound_address(text: str) -> dict[Family, Address]:
    """The primary address given by --bind-address."""
    if not text or ip_address(text).is_unspecified:
        return {}
    address = parse_address(text)
    return {family_of(address): address}
