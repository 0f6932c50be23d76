# SPDX-License-Identifier: Apache-2.0
"""Which pod an address belongs to: this node's pods from the API, others from endpoints.

A pod that is not behind any Service is known on its own node, where its connections are recorded.
"""

from ebpflb.model.address import Address
from ebpflb.model.objects.kinds import Kind, ObjectKey, key_of
from ebpflb.model.pod import NamedPod, Pod
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.source.interface import SourceEvent


class PodNames:
    """By address. One thread, that of the locations, calls `note()`; any thread may call `at()`."""

    def __init__(self, locations: EndpointLocations) -> None:
        self._locations = locations
        self._pods: dict[ObjectKey, Pod] = {}
        self._names: dict[Address, NamedPod] = {}

    def at(self, address: Address) -> NamedPod:
        """The pod that has the address, or had it last."""
        return self._names.get(address) or self._locations.pod(address)

    def note(self, event: SourceEvent) -> None:
        """Follow this node's pods."""
        for item in event.upserts:
            if isinstance(item, Pod):
                self._replace(key_of(item), item)
        for key in event.removals:
            if key.kind is Kind.POD:
                self._replace(key, None)

    def _replace(self, key: ObjectKey, new: Pod | None) -> None:
        old = self._pods.pop(key, None)
        if new:
            self._pods[key] = new
            name = NamedPod(f"{new.namespace}/{new.name}", new.workload)
            self._names.update(dict.fromkeys(new.addresses, name))
        for address in set(old.addresses if old else ()) - set(new.addresses if new else ()):
            self._forget(address, key)

    def _forget(self, address: Address, key: ObjectKey) -> None:
        """Unless another pod has the address by now."""
        name = self._names.get(address)
        if name and name.pod == f"{key.namespace}/{key.name}":
            self._locations.remember(address, self._names.pop(address))
