# SPDX-License-Identifier: Apache-2.0
"""What all manifest files together say, and what changed in that. No I/O."""

from typing import NamedTuple

from ebpflb.model.changes import ApiObject, ObjectKey
from ebpflb.source.manifest import Objects


class Difference(NamedTuple):
    """What take() found."""

    upserts: tuple[ApiObject, ...]
    removals: tuple[ObjectKey, ...]


class Inventory:
    """The objects of every file. Where files share an object, the last file name counts."""

    def __init__(self) -> None:
        self._files: dict[str, Objects] = {}
        # The files that have an object, sorted.
        self._holders: dict[ObjectKey, tuple[str, ...]] = {}
        # What each object touched since the last take() was then; None = it was not there.
        self._before: dict[ObjectKey, ApiObject | None] = {}

    def put(self, file: str, objects: Objects) -> list[str]:
        """Replace what a file holds; nothing if the file is gone.

        Returns remarks about objects that other files have, too.
        """
        old = self._files.get(file, {})
        for key in {**old, **objects}:
            self._before.setdefault(key, self._current(key))
        for key in old.keys() - objects.keys():
            self._release(key, file)
        self._files[file] = objects
        joined = [key for key in objects if key not in old and self._join(key, file)]
        if not objects:
            del self._files[file]
        return [self._remark(key) for key in joined]

    def take(self) -> Difference:
        """What changed since the last call."""
        before, self._before = self._before, {}
        upserts, removals = [], []
        for key, old in before.items():
            new = self._current(key)
            if new is None and old is not None:
                removals.append(key)
            elif new is not None and new != old:
                upserts.append(new)
        return Difference(tuple(upserts), tuple(removals))

    def _current(self, key: ObjectKey) -> ApiObject | None:
        holders = self._holders.get(key)
        return self._files[holders[-1]][key] if holders else None

    def _join(self, key: ObjectKey, file: str) -> bool:
        """Enter file as a holder; whether there are others."""
        holders = self._holders.get(key, ())
        self._holders[key] = tuple(sorted((*holders, file)))
        return bool(holders)

    def _release(self, key: ObjectKey, file: str) -> None:
        rest = tuple(holder for holder in self._holders[key] if holder != file)
        if rest:
            self._holders[key] = rest
        else:
            del self._holders[key]

    def _remark(self, key: ObjectKey) -> str:
        holders = self._holders[key]
        return f"{key} is in {', '.join(holders)}: {holders[-1]} counts"
