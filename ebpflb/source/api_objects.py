# SPDX-License-Identifier: Apache-2.0
"""The objects in the API server's answers, each read on its own: an unreadable one spoils no other.

They stay JSON here. Their managedFields are never read: a third of an object, and the one field in
which the API server keeps whatever JSON a user has sent.
"""

import json
from collections.abc import Generator, Iterator
from typing import NamedTuple

from ebpflb.from_json import JsonError, JsonReader, from_json
from ebpflb.source.api_types import (
    AnyObject,
    EventObject,
    Fields,
    Json,
    KnownMetadata,
    ListMetadata,
    ListObject,
)
from ebpflb.source.typed import checked, quickly

_TRIGGER_TIME = "endpoints.kubernetes.io/last-change-trigger-time"


class Known(NamedTuple):
    """Metadata of an object whose other fields may be invalid; empty where it is no text."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    version: str = ""
    triggered: str = ""


class Item(NamedTuple):
    """An object. known: its metadata, as far as that can be read. problem: why it is no JSON."""

    known: Known
    raw: Json
    problem: str = ""


class WatchEvent(NamedTuple):
    """kind: ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."""

    kind: str
    item: Item


def item_of(raw: Json) -> Item:
    """An object that may be invalid, or no JSON."""
    if found := quickly(raw, AnyObject):
        return Item(_known(found.metadata or KnownMetadata()), raw)
    return _item(JsonReader(bytes(raw)))


def known_of(document: Fields) -> Known:
    """The metadata of an object; nothing but the API server may have checked it."""
    metadata = document.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    annotations = fields.get("annotations")
    triggered = annotations.get(_TRIGGER_TIME) if isinstance(annotations, dict) else None
    found = [fields.get(name) for name in ("namespace", "name", "uid", "resourceVersion")]
    return Known(*(each if isinstance(each, str) else "" for each in (*found, triggered)))


def object_of(raw: Json) -> Fields:
    """An object by the names of its fields. Raises JsonError."""
    found = from_json(bytes(raw))
    if not isinstance(found, dict):
        raise JsonError("must be an object")
    return _without_managed_fields(found)


def items_of(raw: bytes) -> Generator[Item, None, ListMetadata]:
    """The objects of a list; returns its metadata. Raises JsonError and FieldError."""
    page = quickly(raw, ListObject)
    if page is not None:
        yield from map(item_of, page.items or ())
        return page.metadata or ListMetadata()
    reader, others = JsonReader(raw), dict[str, object]()
    for _ in _items(reader, others):
        yield _item(reader)
    return checked({"metadata": others.get("metadata")}, ListObject).metadata or ListMetadata()


def readable_items_of(raw: bytes) -> Generator[Fields, None, Fields]:
    """The objects of a list that are readable; returns its other fields. Raises JsonError."""
    reader, others = JsonReader(raw), dict[str, object]()
    for _ in _items(reader, others):
        try:
            found = reader.value()
        except JsonError:
            reader.pass_over()
            continue
        if isinstance(found, dict):
            yield _without_managed_fields(found)
    return others


def event_of(raw: bytes) -> WatchEvent:
    """A line of a watch. Raises JsonError."""
    event = quickly(raw, EventObject)
    if event is not None:
        return WatchEvent(event.type, item_of(event.object))
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


def _items(reader: JsonReader, others: dict[str, object]) -> Iterator[None]:
    """Yield before each object of a list; its other fields are put into `others`."""
    for name in reader.members():
        if name == "items" and reader.next() == "[":
            yield from reader.elements()
        else:
            others[name] = reader.value()
    reader.end()
    if others.get("items") is not None:
        raise JsonError("items: must be a list")


def _item(reader: JsonReader) -> Item:
    """The slow way: what is too deep or too large in an object is replaced, as by from_json()."""
    try:
        found = reader.value()
    except JsonError as error:
        text = reader.pass_over()
        return Item(known_of(_beginning(text)), text.encode(), str(error))
    if not isinstance(found, dict):
        return Item(Known(), b"null", "must be an object")
    fields = _without_managed_fields(found)
    return Item(known_of(fields), json.dumps(fields).encode())


def _known(metadata: KnownMetadata) -> Known:
    annotations = metadata.annotations
    found = (metadata.namespace, metadata.name, metadata.uid, metadata.resource_version)
    return Known(*(each or "" for each in (*found, annotations and annotations.changed)))


def _without_managed_fields(found: Fields) -> Fields:
    if isinstance(found.get("metadata"), dict):
        found["metadata"].pop("managedFields", None)
    return found


def _beginning(text: str) -> Fields:
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
