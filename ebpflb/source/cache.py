# SPDX-License-Identifier: Apache-2.0
"""The objects of one kind that the API server has, and what changed among them."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple

from ebpflb.errors import SourceError
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.objects.tracked import Difference, TrackedObjects
from ebpflb.model.service import ServiceName
from ebpflb.source.api_objects import Item
from ebpflb.source.api_types import is_name
from ebpflb.source.decode import decode, identity
from ebpflb.source.interface import Trigger


def trigger_time(text: str) -> float | None:
    """When a slice's endpoints changed, in seconds since 1970, as its controller has recorded it.

    None if that is no time in RFC 3339.
    """
    with suppress(ValueError):
        found = datetime.fromisoformat(text)
        return found.timestamp() if found.tzinfo else None
    return None


class Listed(NamedTuple):
    """Objects of one kind. An unreadable one stays as it was before, if it was known."""

    objects: dict[ObjectKey, ApiObject]
    uids: dict[ObjectKey, str]
    errors: dict[str | ObjectKey, str]

    @property
    def names_all(self) -> bool:
        """Whether at least the names of all objects are readable."""
        return all(key.name for key in self.uids)


class Cache:
    """The latest objects of one kind from the API server, and what changed. No I/O.

    errors: object -> one line, for those that cannot be read.
    """

    def __init__(self, kind: Kind, label_keys: Collection[str] = ()) -> None:
        """`label_keys`: see decode()."""
        self.errors: dict[str | ObjectKey, str] = {}
        self._kind = kind
        self._label_keys = label_keys
        self._objects = TrackedObjects()
        self._uids: dict[ObjectKey, str] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def __contains__(self, key: ObjectKey) -> bool:
        return self._objects.get(key) is not None

    def get(self, key: ObjectKey) -> ApiObject | None:
        return self._objects.get(key)

    def uid(self, key: ObjectKey) -> str:
        """Empty if the object does not exist."""
        return self._uids.get(key, "")

    def key(self, item: Item) -> ObjectKey:
        """Without a name if the API server would not accept what is there."""
        known = item.known
        name = known.name if is_name(known.name) else ""
        namespace = known.namespace or "default" if self._kind.is_namespaced else ""
        return ObjectKey(self._kind, namespace if is_name(namespace) else "", name)

    def read(self, items: Iterable[Item]) -> Listed:
        """Decode the objects; changes nothing here."""
        found = Listed({}, {}, {})
        for item in items:
            key = self.key(item)
            found.uids[key] = item.known.uid
            try:
                decoded = self._decoded(item)
            except SourceError as error:
                found.errors[key] = str(error)
                decoded = self._objects.get(key)
            if decoded is not None:
                found.objects[key] = decoded
        return found

    def replace(self, listed: Listed) -> list[Trigger]:
        """Set the complete list of objects."""
        self._uids, self.errors = listed.uids, listed.errors
        # One without a readable name may be any that is missing.
        gone = self._objects.keys() - listed.objects.keys() if listed.names_all else ()
        triggers: list[Trigger] = []
        for key in (*gone, *listed.objects):
            triggers += self._set(key, listed.objects.get(key), None)
        return triggers

    def change(self, item: Item, *, deleted: bool) -> list[Trigger]:
        """One object was added, modified or deleted."""
        key = self.key(item)
        listed = self.read([] if deleted else [item])
        self.errors.pop(key, None)
        self._uids.pop(key, None)
        self.errors.update(listed.errors)
        self._uids.update(listed.uids)
        return self._set(key, listed.objects.get(key), trigger_time(item.known.triggered))

    def take(self) -> Difference:
        """What changed since the last call."""
        return self._objects.take_difference()

    def all(self) -> list[ApiObject]:
        """The current objects."""
        return self._objects.all()

    def assume(self, sent: Iterable[ApiObject], *, is_listed: bool) -> None:
        """Whoever calls take() has these; and until a list comes, they are what there is."""
        listed, self._objects = self._objects, TrackedObjects()
        assumed = {key_of(item): item for item in sent}
        for key, item in assumed.items():
            self._objects.set(key, item)
        self._objects.take()
        if is_listed:
            for key in assumed.keys() | listed.keys():
                self._objects.set(key, listed.get(key))

    def _decoded(self, item: Item) -> ApiObject | None:
        if item.problem:
            raise SourceError(f"{identity(self._kind, item.known)}: {item.problem}")
        return decode(item.raw, self._label_keys, self._kind)

    def _set(self, key: ObjectKey, new: ApiObject | None, triggered: float | None) -> list[Trigger]:
        piece = new or self._objects.get(key)
        if not self._objects.set(key, new) or not isinstance(piece, EndpointSlice):
            return []
        if new is not None and triggered is None:
            return []
        service = ServiceName(piece.namespace, piece.service)
        return [Trigger(service, piece.family, triggered if new else None)]
