# SPDX-License-Identifier: Apache-2.0
"""Which of its addresses the node sends from: in general, and for masqueraded packets."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import permutations

from ebpflb.dataplane.kernel.rtnetlink import AddressFlag, DefaultRoute, InterfaceAddress
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Address, Family
from ebpflb.model.source_ranges import Prefix

_NO_SOURCE = AddressFlag.DADFAILED | AddressFlag.DEPRECATED
_LONGEST_PREFIX = {Family.IPV4: 32, Family.IPV6: 128}
_BITS = 128


def best_source(addresses: Iterable[InterfaceAddress], family: Family) -> Address | None:
    """The SNAT address, out of those of one device.

    Global scope, valid, not deprecated; preferably not secondary, temporary, or the only one in its
    prefix, because tools that announce VIPs add them that way.
    """
    best = min(_sources(addresses, family), key=_source_rank, default=None)
    return best.address if best else None


def by_subnet(addresses: Iterable[InterfaceAddress], family: Family) -> dict[Prefix, Address]:
    """SNAT addresses by next hop: the address in its subnet. Empty if there is only one subnet.

    `addresses`: those of one device. A prefix that is not a subnet is for destinations behind a
    link-local next hop, for which IPv6 prefers the address with the longest common prefix
    (RFC 6724, rule 8): it is the first bits of one address, up to where another one differs.
    kube-proxy's MASQUERADE makes the same choice (inet_select_addr() and ipv6_dev_get_saddr()).
    """
    usable = [found for found in _sources(addresses, family) if not _is_alone(found)]
    chosen: dict[Prefix, Address] = {}
    for found in sorted(usable, key=_source_rank):
        chosen.setdefault(_prefix(found.address, _subnet_length(found)), found.address)
    if len(chosen) == 1:
        return {}
    if family is Family.IPV6:
        for source, other in permutations(list(chosen.values()), 2):
            chosen.setdefault(_prefix(source, _equal_bits(source, other) + 1), source)
    return chosen


def primary_addresses(
    routed: Mapping[Family, Address | None],
    addresses: Sequence[InterfaceAddress],
    kinds: Mapping[int, DeviceKind],
) -> dict[Family, Address]:
    """One address of the node per family: the default route's, else that of a host device.

    For IPv6 the kernel may choose a VIP announced from the same device: see `best_source()`.
    """
    hosts = sorted(ifindex for ifindex, kind in kinds.items() if kind == DeviceKind.LB_DEVICE_HOST)
    ranked = [found for ifindex in hosts for found in addresses if found.ifindex == ifindex]
    chosen = {family: routed.get(family) or best_source(ranked, family) for family in Family}
    chosen[Family.IPV6] = _no_vip(chosen[Family.IPV6], addresses)
    return {family: address for family, address in chosen.items() if address}


def cut_off(
    addresses: Iterable[InterfaceAddress],
    down: Collection[int],
    default: Mapping[Family, DefaultRoute],
) -> frozenset[Address]:
    """Addresses of devices that are down while the default route leads elsewhere.

    With a single uplink there are none: its flows go on when it is back.
    """
    addresses = [found for found in addresses if found.family in default]
    stays = {found.address for found in addresses if found.ifindex not in down}
    return frozenset(
        found.address
        for found in addresses
        if found.ifindex in down and default[found.family].ifindex not in down
    ).difference(stays)


def _no_vip(chosen: Address | None, addresses: Sequence[InterfaceAddress]) -> Address | None:
    """If the chosen address is alone in its prefix, another one of the device that is not."""
    found = next((each for each in addresses if each.address == chosen), None)
    if found is None or not _is_alone(found):
        return chosen
    beside = (each for each in addresses if each.ifindex == found.ifindex and not _is_alone(each))
    return best_source(beside, found.family) or chosen


def _sources(addresses: Iterable[InterfaceAddress], family: Family) -> list[InterfaceAddress]:
    return [found for found in addresses if found.family == family and _is_source(found)]


def _is_source(found: InterfaceAddress) -> bool:
    tentative = AddressFlag.TENTATIVE in found.flags and AddressFlag.OPTIMISTIC not in found.flags
    return found.scope == 0 and not tentative and not found.flags & _NO_SOURCE


def _source_rank(found: InterfaceAddress) -> tuple[bool, bool]:
    return AddressFlag.SECONDARY in found.flags, _is_alone(found)


def _is_alone(found: InterfaceAddress) -> bool:
    return found.prefix_length == _LONGEST_PREFIX[found.family]


def _subnet_length(found: InterfaceAddress) -> int:
    """Out of 128 bits, as for all addresses here."""
    return _BITS - _LONGEST_PREFIX[found.family] + found.prefix_length


def _prefix(address: Address, length: int) -> Prefix:
    spare = _BITS - length
    first = int.from_bytes(address, "big") >> spare << spare
    return Prefix(Address(first.to_bytes(_BITS // 8, "big")), length)


def _equal_bits(one: Address, other: Address) -> int:
    unlike = int.from_bytes(one, "big") ^ int.from_bytes(other, "big")
    return _BITS - unlike.bit_length()
