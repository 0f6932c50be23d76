# SPDX-License-Identifier: Apache-2.0
"""The node this agent runs on, as the API knows it."""

from collections.abc import Mapping
from dataclasses import dataclass

from ebpflb.model.address import Address, Family, family_of


@dataclass(frozen=True, slots=True)
class Node:
    """A Node; zone may be empty. addresses: internal ones first.

    eligible: load balancers may send it traffic, because it is not about to be removed.
    """

    name: str
    zone: str = ""
    addresses: tuple[Address, ...] = ()
    eligible: bool = True

    @property
    def primary(self) -> Mapping[Family, Address]:
        """The first address of each family."""
        return {family_of(address): address for address in reversed(self.addresses)}
