# SPDX-License-Identifier: Apache-2.0
"""What the API server has told of one kind, and what of it is new. No I/O."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from ebpflb.errors import SourceError
from ebpflb.model.changes import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.service import ServiceName
from ebpflb.source.decode import decode
from ebpflb.source.fields import Fields
from ebpflb.source.metadata import metadata_of
from ebpflb.source.source_event import Trigger
from ebpflb.source.trigger import trigger_time


@dataclass(slots=True)
class Difference:
    """What is new; an object that cannot be read leaves the one that was read before."""

    upserts: list[ApiObject] = field(default_factory=list)
    removals: list[ObjectKey] = field(default_factory=list)
    triggers: list[Trigger] = field(default_factory=list)


class Cache:
    """The objects of one kind. errors: object -> one line, of those that cannot be read.

    Written by one thread; errors is replaced as a whole, for others to read.
    """

    def __init__(self, kind: Kind, api_version: str) -> None:
        self.errors: dict[str, str] = {}
        self._kind = kind
        self._type = {"kind": str(kind), "apiVersion": api_version}
        self._objects: dict[ObjectKey, ApiObject] = {}
        self._uids: dict[ObjectKey, str] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def uid(self, key: ObjectKey) -> str:
        """The uid of an object, empty when it is not there."""
        return self._uids.get(key, "")

    def replace(self, pages: Iterable[list[Fields]]) -> Difference:
        """Everything there is. Nothing changes when `pages` raises."""
        difference = Difference()
        fresh = Cache(self._kind, self._type["apiVersion"])
        for page in pages:
            for item in page:
                key = self._key(item)
                fresh._keep(key, item, self._objects.get(key))
        for key in self._objects.keys() - fresh._objects.keys():
            self._remove(key, difference)
        for key, new in fresh._objects.items():
            if self._objects.get(key) != new:
                difference.upserts.append(new)
        self._objects, self._uids, self.errors = fresh._objects, fresh._uids, fresh.errors
        return difference

    def change(self, item: Fields, *, deleted: bool) -> Difference:
        """One object is new, other or gone."""
        difference = Difference()
        key = self._key(item)
        old = self._objects.get(key)
        if deleted:
            self._forget_error(key)
            self._remove(key, difference)
            return difference
        self._keep(key, item, old)
        new = self._objects.get(key)
        if new is None:
            self._remove(key, difference, old)
        elif new != old:
            difference.upserts.append(new)
            if (triggered := trigger_time(item)) is not None:
                _note_trigger(difference, new, triggered)
        return difference

    def _key(self, item: Fields) -> ObjectKey:
        metadata = metadata_of(item)
        namespace = metadata.namespace if self._kind.is_namespaced else ""
        return ObjectKey(self._kind, namespace, metadata.name)

    def _keep(self, key: ObjectKey, item: Fields, old: ApiObject | None) -> None:
        self._uids[key] = metadata_of(item).uid
        self._forget_error(key)
        try:
            found = decode({**item, **self._type})
        except SourceError as error:
            self.errors = {**self.errors, str(key): str(error)}
            found = old
        if found is None:
            self._objects.pop(key, None)
        else:
            self._objects[key_of(found)] = found

    def _forget_error(self, key: ObjectKey) -> None:
        if str(key) in self.errors:
            self.errors = {name: line for name, line in self.errors.items() if name != str(key)}

    def _remove(self, key: ObjectKey, difference: Difference, old: ApiObject | None = None) -> None:
        self._uids.pop(key, None)
        gone = self._objects.pop(key, None) or old
        if gone is not None:
            difference.removals.append(key)
            _note_trigger(difference, gone, None)


def _note_trigger(difference: Difference, item: ApiObject, time: float | None) -> None:
    if isinstance(item, EndpointSlice):
        name = ServiceName(item.namespace, item.service)
        difference.triggers.append(Trigger(name, item.family, time))
