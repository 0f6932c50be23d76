# SPDX-License-Identifier: Apache-2.0
"""The node this agent runs on, as the API knows it."""

from dataclasses import dataclass

from ebpflb.model.address import Address


@dataclass(frozen=True, slots=True)
class Node:
    """A Node; zone is empty when it is in none. addresses: internal ones first."""

    name: str
    zone: str = ""
    addresses: tuple[Address, ...] = ()
