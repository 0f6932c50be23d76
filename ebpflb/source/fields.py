# SPDX-License-Identifier: Apache-2.0
"""Typed access to the fields and the metadata of an API object; null counts as absent."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from sys import intern
from typing import Any, NamedTuple, TypeVar

from ebpflb.model.changes import Kind

Fields = Mapping[str, Any]
_LONGEST_EXCERPT = 40
T = TypeVar("T")
U = TypeVar("U")


class FieldError(Exception):
    """An invalid field; its path grows on the way up to the whole object."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem

    def within(self, parent: str) -> "FieldError":
        """The same error as seen from the object that contains the field `parent`."""
        return FieldError(f"{parent}.{self.path}" if self.path else parent, self.problem)


def as_fields(value: object) -> Fields:
    """The value itself. FieldError unless it is an object."""
    if isinstance(value, dict):
        return value
    raise FieldError("", f"must be an object, not {_excerpt(value)}")


def object_at(fields: Fields, key: str, decode: Callable[[Fields], T]) -> T:
    """decode() of the object at key, or of an empty object if there is none."""
    value = fields.get(key)
    try:
        return decode({} if value is None else as_fields(value))
    except FieldError as error:
        raise error.within(key) from error


def list_at(fields: Fields, key: str, decode: Callable[[Any], T]) -> list[T]:
    """decode() of each member of the list at key."""
    members = fields.get(key)
    if members is None:
        return []
    if not isinstance(members, list):
        raise FieldError(key, f"must be a list, not {_excerpt(members)}")
    results = []
    for index, member in enumerate(members):
        try:
            results.append(decode(member))
        except FieldError as error:
            raise error.within(f"{key}[{index}]") from error
    return results


def as_text(value: object) -> str:
    """The value itself. FieldError unless it is text."""
    if isinstance(value, str):
        return value
    raise FieldError("", f"must be text, not {_excerpt(value)}")


def text_at(fields: Fields, key: str) -> str:
    """The text at key, empty if missing. Equal texts share one object."""
    value = fields.get(key)
    if value is None:
        return ""
    try:
        return intern(as_text(value))
    except FieldError as error:
        raise error.within(key) from error


def name_at(fields: Fields, key: str) -> str:
    """The text at key, which must not be missing or empty."""
    text = text_at(fields, key)
    if not text:
        raise FieldError(key, "is missing")
    return text


def flag_at(fields: Fields, key: str, default: bool) -> bool:
    """The boolean at key."""
    value = fields.get(key)
    if value is None:
        return default
    if value is True or value is False:
        return value
    raise FieldError(key, f"must be true or false, not {_excerpt(value)}")


def number_at(fields: Fields, key: str, last: int) -> int:
    """The integer from 0 to last at key, 0 if missing."""
    value = fields.get(key)
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= last:
        return value
    raise FieldError(key, f"must be a whole number up to {last}, not {_excerpt(value)}")


def choice_at(fields: Fields, key: str, choices: Mapping[str, T], default: U) -> T | U:
    """The value in choices for the text at key."""
    text = text_at(fields, key)
    if not text:
        return default
    if text not in choices:
        raise FieldError(key, f"must be one of {', '.join(choices)}, not {_excerpt(text)}")
    return choices[text]


def _excerpt(value: object) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case None | bool() | float():
            return json.dumps(value)
        case str():
            return json.dumps(value[:_LONGEST_EXCERPT])
        case int() if value.bit_length() > _LONGEST_EXCERPT:
            return "one that large"
        case _:
            return str(value)


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL_LENGTH = 63
_NAME_LENGTH = 253


class Metadata(NamedTuple):
    """The metadata that is used; created and deleted are in RFC 3339, or empty."""

    namespace: str
    name: str
    labels: Fields
    created: str
    deleted: str
    uid: str


class ObjectMeta(NamedTuple):
    """Metadata of an object whose other fields may be invalid; reading it never fails."""

    namespace: str
    name: str
    uid: str
    annotations: Fields


def metadata_of(document: Fields) -> ObjectMeta:
    """The metadata of an object from the API server, which has validated it."""
    metadata = document.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    namespace, name, uid = (
        found if isinstance(found := fields.get(key), str) else ""
        for key in ("namespace", "name", "uid")
    )
    annotations = fields.get("annotations")
    return ObjectMeta(namespace, name, uid, annotations if isinstance(annotations, dict) else {})


def identity(kind: Kind, document: Fields) -> str:
    """Kind, namespace and name of an object, as far as they can be read."""
    metadata = metadata_of(document)
    if not is_name(metadata.name):
        return kind
    namespace = metadata.namespace or "default" if kind.is_namespaced else ""
    return f"{kind} {'/'.join(filter(is_name, (namespace, metadata.name)))}"


def read_metadata(kind: Kind, fields: Fields) -> Metadata:
    """The metadata of an object of that kind. Raises FieldError."""
    longest = _LABEL_LENGTH if kind is Kind.SERVICE else _NAME_LENGTH
    name = _checked_name(name_at(fields, "name"), "name", longest)
    namespace = text_at(fields, "namespace") or "default"
    checked_label(namespace, "namespace")
    return Metadata(
        namespace,
        name,
        object_at(fields, "labels", as_fields),
        _time_at(fields, "creationTimestamp"),
        _time_at(fields, "deletionTimestamp"),
        text_at(fields, "uid"),
    )


def checked_label(name: str, field: str) -> str:
    """The name itself, if it is a DNS label. Raises FieldError."""
    return _checked_name(name, field, _LABEL_LENGTH)


def _time_at(fields: Fields, key: str) -> str:
    """The time at key as text, empty if missing. Unquoted in YAML it is a datetime."""
    value = fields.get(key)
    if not isinstance(value, datetime):
        return text_at(fields, key)
    try:
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError) as error:
        raise FieldError(key, "must be a time from year 1 to 9999 in UTC") from error


def _checked_name(name: str, field: str, longest: int) -> str:
    if len(name) > longest:
        raise FieldError(field, f"must have at most {longest} characters")
    if not is_name(name):
        raise FieldError(field, "must consist of lower-case letters, digits, '-' and '.'")
    return name


def is_name(text: str) -> bool:
    """Whether the API server accepts it as a name, apart from the length."""
    return _NAME.fullmatch(text) is not None
