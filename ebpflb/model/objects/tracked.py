# SPDX-License-Identifier: Apache-2.0
"""Objects by key, and how they differ from what somebody last saw."""

from collections.abc import KeysView
from typing import NamedTuple

from ebpflb.model.objects.kinds import ApiObject, ObjectKey


class Difference(NamedTuple):
    """What is new or changed, and what is gone."""

    upserts: tuple[ApiObject, ...]
    removals: tuple[ObjectKey, ...]


class TrackedObjects:
    """Objects by key, and what each changed one was at the last take(); None: it did not exist.

    Changes that cancel each other out do not count.
    """

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, ApiObject] = {}
        self._before: dict[ObjectKey, ApiObject | None] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def keys(self) -> KeysView[ObjectKey]:
        return self._objects.keys()

    def all(self) -> list[ApiObject]:
        """The current objects; callable from any thread."""
        return list(self._objects.values())

    def get(self, key: ObjectKey) -> ApiObject | None:
        return self._objects.get(key)

    def set(self, key: ObjectKey, new: ApiObject | None) -> bool:
        """Add, replace or (None) remove an object. Returns whether that makes a difference."""
        old = self._objects.get(key)
        if old == new:
            return False
        if self._before.setdefault(key, old) == new:
            del self._before[key]
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new
        return True

    def take(self) -> dict[ObjectKey, ApiObject | None]:
        """The previous values of the objects that changed since the last call."""
        before, self._before = self._before, {}
        return before

    def take_difference(self) -> Difference:
        """Like take(), with the current values."""
        now = {key: self._objects.get(key) for key in self.take()}
        upserts = tuple(item for item in now.values() if item is not None)
        return Difference(upserts, tuple(key for key, item in now.items() if item is None))
