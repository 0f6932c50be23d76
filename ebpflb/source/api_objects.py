# SPDX-License-Identifier: Apache-2.0
"""The objects in the API server's answers, each read on its own: an unreadable one spoils no other.

Their managedFields are left out: a third of an object, and the one field in which the API server
keeps whatever JSON a user has sent.
"""

from collections.abc import Generator
from typing import NamedTuple

from ebpflb.from_json import JsonError, JsonReader
from ebpflb.source.fields import Fields


class Unreadable(NamedTuple):
    """An object that is not JSON. known: its metadata, as far as that can be read."""

    known: Fields
    problem: str


Item = Fields | Unreadable


class WatchEvent(NamedTuple):
    """kind: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    kind: str
    item: Item


def known_of(item: Item) -> Fields:
    """The object itself, or what is known of an unreadable one."""
    return item.known if isinstance(item, Unreadable) else item


def object_of(raw: bytes) -> Fields:
    """An object. Raises JsonError."""
    reader = JsonReader(raw)
    found = _item(reader)
    reader.end()
    if isinstance(found, Unreadable):
        raise JsonError(found.problem)
    return found


def items_of(raw: bytes) -> Generator[Item, None, Fields]:
    """The objects of a list; returns its other fields. Raises JsonError."""
    reader = JsonReader(raw)
    others = {}
    for name in reader.members():
        if name == "items" and reader.next() == "[":
            for _ in reader.elements():
                yield _item(reader)
        else:
            others[name] = reader.value()
    reader.end()
    if others.get("items") is not None:
        raise JsonError("items: must be a list")
    return others


def readable_items_of(raw: bytes) -> Generator[Fields, None, Fields]:
    """Like items_of(), without those that are unreadable."""
    items = items_of(raw)
    while True:
        try:
            item = next(items)
        except StopIteration as end:
            others: Fields = end.value
            return others
        if not isinstance(item, Unreadable):
            yield item


def event_of(raw: bytes) -> WatchEvent:
    """A line of a watch. Raises JsonError."""
    reader = JsonReader(raw)
    kind: object = None
    item: Item | None = None
    for name in reader.members():
        if name == "object":
            item = _item(reader)
        else:
            found = reader.value()
            kind = found if name == "type" else kind
    reader.end()
    if not isinstance(kind, str) or item is None:
        raise JsonError("has no type or no object")
    return WatchEvent(kind, item)


def _item(reader: JsonReader) -> Item:
    try:
        found = reader.value()
    except JsonError as error:
        return Unreadable(_known(reader.pass_over()), str(error))
    if not isinstance(found, dict):
        return Unreadable({}, "must be an object")
    if isinstance(found.get("metadata"), dict):
        found["metadata"].pop("managedFields", None)
    return found


def _known(text: str) -> Fields:
    """What precedes the first error; the API server writes an object's name and version first."""
    metadata: dict[str, object] = {}
    reader = JsonReader(text)
    try:
        for member in reader.members():
            if member != "metadata":
                reader.value()
                continue
            for name in reader.members():
                metadata[name] = reader.value()
    except JsonError:
        return {"metadata": metadata}
    return {"metadata": metadata}
