# SPDX-License-Identifier: Apache-2.0
"""Manifest files: the objects in each, as YAML or JSON, and the merged result. No I/O."""

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

import yaml

from ebpflb.errors import SourceError
from ebpflb.from_json import JsonError, from_json
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.objects.tracked import Difference, TrackedObjects
from ebpflb.model.service import Service
from ebpflb.source.api_objects import known_of
from ebpflb.source.api_types import Fields
from ebpflb.source.decode import decode, identity, kind_of
from ebpflb.source.typed import excerpt

Objects = dict[ObjectKey, ApiObject]

# What PyYAML's constructors raise if a tag does not fit its text.
_YAML_ERRORS = (yaml.YAMLError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
_DEEPEST = 100
_SURELY_SAFE = 2000

_NOTHING_TO_DO = {
    Kind.SERVICE: "not served: it has no ClusterIP or is for another proxy",
    Kind.ENDPOINT_SLICE: "ignored: it is headless, names no Service or has no IP addresses",
}


class Content(NamedTuple):
    """The objects of a manifest, and warnings for the operator about what is ignored."""

    objects: Objects
    remarks: list[str]


def parse_manifest(name: str, raw: bytes, label_keys: Collection[str] = ()) -> Content:
    """The objects in a file; its name decides between JSON and YAML. label_keys: see decode().

    Raises SourceError, which names document, object and field, if any object is wrong.
    """
    content = Content({}, [])
    documents = _json(raw) if name.endswith(".json") else _yaml(raw)
    done = 0
    try:
        for document in documents:
            _add_document(content, document, label_keys)
            done += 1
    except SourceError as error:
        raise SourceError(f"document {done + 1}: {error}") from error
    return content


def _json(raw: bytes) -> Iterator[object]:
    if not raw.strip():
        return
    try:
        yield from_json(raw)
    except JsonError as error:
        raise SourceError(str(error)) from error


def _yaml(raw: bytes) -> Iterator[object]:
    if _may_be_deep(raw) and _is_deep(raw):
        raise SourceError(f"is nested more than {_DEEPEST} levels deep")
    try:
        yield from yaml.load_all(raw, Loader=yaml.CSafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise SourceError(f"{place}{error.problem}") from error
    except _YAML_ERRORS as error:
        raise SourceError(f"cannot be read as YAML: {' '.join(str(error).split())}") from error


def _may_be_deep(raw: bytes) -> bool:
    """A cheap check: a level needs a bracket, or in block style a column for every two."""
    longest = max(map(len, raw.splitlines()), default=0)
    return raw.count(b"[") + raw.count(b"{") + 2 * longest > _SURELY_SAFE


def _is_deep(raw: bytes) -> bool:
    """PyYAML builds nodes recursively in C, where too much nesting crashes the process."""
    depth = 0
    with suppress(yaml.YAMLError):
        for event in yaml.parse(raw, Loader=yaml.CSafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent)
            depth -= isinstance(event, yaml.CollectionEndEvent)
            if depth > _DEEPEST:
                return True
    return False


def _add_document(content: Content, document: object, label_keys: Collection[str]) -> None:
    if document is None:
        return
    fields = _object(document)
    if fields.get("kind") != "List":
        _add_object(content, fields, label_keys)
        return
    items = fields.get("items") or []
    if not isinstance(items, list):
        raise SourceError(f"items: must be a list, not {excerpt(items)}")
    for index, item in enumerate(items):
        try:
            _add_object(content, _object(item), label_keys)
        except SourceError as error:
            raise SourceError(f"items[{index}]: {error}") from error


def _object(value: object) -> Fields:
    if isinstance(value, dict):
        return value
    raise SourceError(f"must be an object, not {excerpt(value)}")


def _add_object(content: Content, fields: Fields, label_keys: Collection[str]) -> None:
    kind = kind_of(fields)
    if kind is None:
        content.remarks.append(f"objects of kind {fields['kind']} are ignored")
        return
    found = decode(fields, label_keys)
    if kind is Kind.POD and (labels := decode(fields, label_keys, Kind.POD_LABELS)):
        content.objects[key_of(labels)] = labels
    if found is not None:
        content.objects[key_of(found)] = found
    if found is None or (isinstance(found, Service) and not found.ports):
        content.remarks.append(f"{identity(kind, known_of(fields))}: {_NOTHING_TO_DO[kind]}")


class Inventory:
    """The objects of every file. If files share an object, the last file name wins."""

    def __init__(self) -> None:
        self._objects = TrackedObjects()
        # The objects of each file, which file wins for an object, and each file's version of the
        # objects in several files.
        self._files: dict[str, tuple[ObjectKey, ...]] = {}
        self._holder: dict[ObjectKey, str] = {}
        self._shared: dict[ObjectKey, dict[str, ApiObject]] = {}

    def put(self, file: str, objects: Objects) -> list[str]:
        """Replace the contents of a file; empty if the file is gone.

        Returns warnings about objects that other files have, too.
        """
        old = self._files.pop(file, ())
        if objects:
            self._files[file] = tuple(objects)
        remarks = []
        for key in dict.fromkeys((*old, *objects)):
            held = self._held(key)
            is_new = held.pop(file, None) is None
            has_others = bool(held)
            if key in objects:
                held[file] = objects[key]
            if has_others and is_new:
                files = sorted(held)
                remarks.append(f"{key} is in {', '.join(files)}: using {files[-1]}")
            self._hold(key, held)
        return remarks

    def _held(self, key: ObjectKey) -> dict[str, ApiObject]:
        """The versions of an object, by file."""
        item = self._objects.get(key)
        return self._shared.pop(key, {self._holder[key]: item} if item else {})

    def _hold(self, key: ObjectKey, held: dict[str, ApiObject]) -> None:
        if len(held) > 1:
            self._shared[key] = held
        if held:
            self._holder[key] = max(held)
            self._objects.set(key, held[max(held)])
        else:
            del self._holder[key]
            self._objects.set(key, None)

    def take(self) -> Difference:
        """What changed since the last call."""
        return self._objects.take_difference()
