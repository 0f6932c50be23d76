# SPDX-License-Identifier: Apache-2.0
"""Which pod, node and zone an endpoint's address belongs to, according to the source.

Metrics and flow records use it to name addresses. It follows the source, not what is programmed.
"""

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from ebpflb.model.address import Address
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import Kind, ObjectKey, key_of
from ebpflb.model.pod import NOBODY, NamedPod
from ebpflb.model.service import ServicePortName
from ebpflb.source.interface import SourceEvent


class EndpointLocation(NamedTuple):
    """`pod` is NAMESPACE/NAME. Unknown parts are ""."""

    pod: str = ""
    node: str = ""
    zone: str = ""


_MOST_GONE = 1024


class EndpointLocations(Mapping[Address, EndpointLocation]):
    """Locations by endpoint address; they may change between two accesses.

    One thread calls `note()` and `remember()`; the rest may be called from any thread. Flow records
    also name pods that no longer exist, such as those of a CronJob, so removed addresses are
    remembered: as many as there are endpoints, plus 1024.
    """

    def __init__(self, node_name: str) -> None:
        self.own = EndpointLocation(node=node_name)
        self._slices: dict[ObjectKey, EndpointSlice] = {}
        # Slices by block of addresses and by id(), in the order they came: neighbouring pods share
        # the entry, and any number of slices may have one of them.
        self._by_block: dict[int, dict[int, EndpointSlice]] = {}
        self._count = 0
        # Removed addresses and the pods that had them, earliest removed first.
        self._gone: OrderedDict[Address, NamedPod] = OrderedDict()

    def __getitem__(self, address: Address) -> EndpointLocation:
        last: EndpointLocation | None = None
        for piece in reversed(list(self._by_block.get(_block(address), {}).values())):
            found = piece.endpoints.last_at(address)
            if found and not last:
                last = EndpointLocation("", found.node_name or "", found.zone)
            # Hand-written slices may lack the pod's name, which another slice may have.
            if found and last and found.pod:
                return last._replace(pod=found.pod)
        if not last:
            raise KeyError(address)
        return last

    def __iter__(self) -> Iterator[Address]:
        pieces = list(self._slices.values())
        return iter({address for piece in pieces for address in piece.endpoints.addresses})

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def pod(self, address: Address) -> NamedPod:
        """The pod that has this address or had it last."""
        gone, location = self._gone.get(address, NOBODY), self.get(address)
        # A current endpoint is newer than a removed one.
        return NamedPod(location.pod) if location and location.pod not in ("", gone.pod) else gone

    def standing(self, ports: Collection[ServicePortName]) -> Counter[ServicePortName]:
        """How many endpoint addresses these Service ports have that are not terminating."""
        found: Counter[ServicePortName] = Counter()
        services = {name[:2] for name in ports}
        for piece in list(self._slices.values()):
            if (piece.namespace, piece.service) in services:
                count = sum(not each.terminating for each in piece.endpoints)
                for port in piece.ports:
                    name = ServicePortName(piece.namespace, piece.service, port.name, port.protocol)
                    found[name] += count if name in ports else 0
        return found

    def remember(self, address: Address, pod: NamedPod) -> None:
        """Remember the pod of a removed address, and its workload if that was ever known."""
        known = self._gone.pop(address, NOBODY)
        self._gone[address] = pod if pod.workload or pod.pod != known.pod else known
        while len(self._gone) > self._count + _MOST_GONE:
            self._gone.popitem(last=False)

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
        old = self._slices.pop(key, None)
        before = {each.address: each.pod for each in old.endpoints} if old else {}
        after = set(new.endpoints.addresses) if new else set()
        if new:
            self._slices[key] = new
        self._count += len(after) - len(before)
        blocks = set(map(_block, after))
        for block in blocks.union(map(_block, before)):
            self._put(block, old, new if block in blocks else None)
        for address in before.keys() - after:
            if before[address] and address not in self:
                self.remember(address, NamedPod(before[address]))

    def _put(self, block: int, old: EndpointSlice | None, new: EndpointSlice | None) -> None:
        """Never removes what stays known, not even for a moment: other threads read meanwhile."""
        pieces = self._by_block.setdefault(block, {})
        if new:
            pieces[id(new)] = new
        if old is not new:
            pieces.pop(id(old), None)
        if not pieces:
            del self._by_block[block]


def _block(address: Address) -> int:
    """The same for 16 adjacent addresses."""
    return int.from_bytes(address, "big") >> 4
