# SPDX-License-Identifier: Apache-2.0
"""Where the addresses of endpoints are: pod, node and zone, as the source tells.

For names beside addresses. It follows the source, not what is in force.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from ebpflb.model.address import Address
from ebpflb.model.changes import Kind, ObjectKey, key_of
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.source.source_event import SourceEvent


class Place(NamedTuple):
    """pod: NAMESPACE/NAME. Each is "" where it is not known."""

    pod: str = ""
    node: str = ""
    zone: str = ""


_NOWHERE = Place()
_MOST_GONE = 1024


class Places:
    """Of one node's agent. `note()` is for one thread, all else for any.

    Flow records speak of pods that are gone: as many as there are, and some more, stay known.
    """

    def __init__(self, node_name: str) -> None:
        self.own = Place(node=node_name)
        self._places: dict[Address, Place] = {}
        self._slices: dict[ObjectKey, tuple[Address, ...]] = {}
        # Those that were there last, the longest gone first.
        self._gone: OrderedDict[Address, str] = OrderedDict()
        # In how many slices an address is.
        self._named: Counter[Address] = Counter()

    def places(self) -> Mapping[Address, Place]:
        """All that are known: the same mapping at each call, which changes as the source does."""
        return MappingProxyType(self._places)

    def pod(self, address: Address) -> str:
        """NAMESPACE/NAME of the pod that has an address or had it last, or an empty string."""
        place = self._places.get(address)
        return (place and place.pod) or self._gone.get(address, "")

    def note(self, event: SourceEvent) -> None:
        """Take what an event says of slices and of the own Node."""
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
            known = self._places.get(each.address, _NOWHERE)
            # A slice that somebody wrote by hand may not name the pod that another one does.
            pod = each.pod or known.pod
            self._places[each.address] = Place(pod, each.node_name or "", each.zone)
        if endpoints:
            self._slices[key] = tuple(each.address for each in endpoints)
            self._named.update(self._slices[key])
        for address in before:
            self._named[address] -= 1
            if not self._named[address]:
                del self._named[address]
                self._forget(address, self._places.pop(address).pod)

    def _forget(self, address: Address, pod: str) -> None:
        if pod:
            self._gone.pop(address, None)
            self._gone[address] = pod
        while len(self._gone) > len(self._places) + _MOST_GONE:
            self._gone.popitem(last=False)
