# SPDX-License-Identifier: Apache-2.0
"""Nodes as the API knows them: the one this agent runs on, and the others."""

from collections.abc import Mapping
from dataclasses import dataclass

from ebpflb.model.address import Address, Family, family_of


@dataclass(frozen=True, slots=True)
class Node:
    """A Node; zone may be empty. addresses: internal ones first.

    eligible: load balancers may send it traffic, because it is not about to be removed. external:
    the addresses that are not internal. pod_ranges: canonical CIDRs.
    """

    name: str
    zone: str = ""
    addresses: tuple[Address, ...] = ()
    eligible: bool = True
    external: tuple[Address, ...] = ()
    pod_ranges: tuple[str, ...] = ()

    @property
    def primary(self) -> Mapping[Family, Address]:
        """The first address of each family."""
        return {family_of(address): address for address in reversed(self.addresses)}

    @property
    def internal(self) -> Mapping[Family, Address]:
        """The first internal address of each family."""
        internal = (each for each in reversed(self.addresses) if each not in self.external)
        return {family_of(address): address for address in internal}
