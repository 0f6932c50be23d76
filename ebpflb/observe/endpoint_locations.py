# SPDX-License-Identifier: Apache-2.0
"""Which pod, node and zone an endpoint's address belongs to, as the source says.

Metrics and flow records use it to name addresses. It follows the source, not what is programmed.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ebpflb.model.address import Address
from ebpflb.model.changes import Kind, ObjectKey, key_of
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.source.interface import SourceEvent


class EndpointLocation(NamedTuple):
    """`pod` is NAMESPACE/NAME. A part that is not known is ""."""

    pod: str = ""
    node: str = ""
    zone: str = ""


_UNKNOWN = EndpointLocation()
_MOST_GONE = 1024


class EndpointLocations:
    """One thread calls `note()`; the rest may be called from any thread.

    Flow records also name pods that no longer exist, so removed pods are remembered: as many as
    there are endpoints, plus 1024.
    """

    def __init__(self, node_name: str) -> None:
        self.own = EndpointLocation(node=node_name)
        self._locations: dict[Address, EndpointLocation] = {}
        self._slices: dict[ObjectKey, tuple[Address, ...]] = {}
        # Removed addresses and the pod each belonged to, earliest removed first.
        self._gone: OrderedDict[Address, str] = OrderedDict()
        self._slice_counts: Counter[Address] = Counter()

    def all(self) -> Mapping[Address, EndpointLocation]:
        """A live view of all known addresses: the same mapping on each call."""
        return MappingProxyType(self._locations)

    def pod(self, address: Address) -> str:
        """NAMESPACE/NAME of the pod that has this address or had it last, or ""."""
        location = self._locations.get(address)
        return (location and location.pod) or self._gone.get(address, "")

    def note(self, event: SourceEvent) -> None:
        """Follow EndpointSlices and this agent's own Node."""
        for item in event.upserts:
            if isinstance(item, EndpointSlice):
                self._replace(key_of(item), item)
            elif isinstance(item, Node) and item.name == self.own.node:
                self.own = self.own._replace(zone=item.zone)
        for key in event.removals:
            if key.kind is Kind.ENDPOINT_SLICE:
                self._replace(key, None)

    def _replace(self, key: ObjectKey, new: EndpointSlice | None) -> None:
        endpoints = new.endpoints if new else ()
        before = self._slices.pop(key, ())
        for each in endpoints:
            known = self._locations.get(each.address, _UNKNOWN)
            # A hand-written slice may lack the pod's name that another slice gives.
            pod = each.pod or known.pod
            self._locations[each.address] = EndpointLocation(pod, each.node_name or "", each.zone)
        if endpoints:
            self._slices[key] = tuple(each.address for each in endpoints)
            self._slice_counts.update(self._slices[key])
        for address in before:
            self._slice_counts[address] -= 1
            if not self._slice_counts[address]:
                del self._slice_counts[address]
                self._forget(address, self._locations.pop(address).pod)

    def _forget(self, address: Address, pod: str) -> None:
        if pod:
            self._gone.pop(address, None)
            self._gone[address] = pod
        while len(self._gone) > len(self._locations) + _MOST_GONE:
            self._gone.popitem(last=False)
