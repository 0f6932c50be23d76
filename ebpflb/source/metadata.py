# SPDX-License-Identifier: Apache-2.0
"""Who an API object says it is."""

import re
from datetime import UTC, datetime
from typing import NamedTuple, TypeGuard

from ebpflb.model.changes import Kind
from ebpflb.source.fields import FieldError, Fields, as_fields, name_at, object_at, text_at

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_LABEL_LENGTH = 63
_NAME_LENGTH = 253


class Metadata(NamedTuple):
    """What is read of the metadata; created and deleted are in RFC 3339, or empty."""

    namespace: str
    name: str
    labels: Fields
    created: str
    deleted: str


class ObjectMeta(NamedTuple):
    """What is read of the metadata of an object that may be unfit otherwise; never fails."""

    namespace: str
    name: str
    uid: str
    annotations: Fields


def metadata_of(document: Fields) -> ObjectMeta:
    """The metadata of an object from the API server, which has checked it."""
    metadata = document.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    namespace, name, uid = (
        found if isinstance(found := fields.get(key), str) else ""
        for key in ("namespace", "name", "uid")
    )
    annotations = fields.get("annotations")
    return ObjectMeta(namespace, name, uid, annotations if isinstance(annotations, dict) else {})


def identity(kind: Kind, document: Fields) -> str:
    """What an object calls itself, as far as that can be read."""
    metadata = document.get("metadata")
    fields = metadata if isinstance(metadata, dict) else {}
    namespace = fields.get("namespace") or "default" if kind.is_namespaced else None
    if not _is_name(fields.get("name")):
        return kind
    path = [each for each in (namespace, fields["name"]) if _is_name(each)]
    return f"{kind} {'/'.join(path)}"


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
    )


def checked_label(name: str, field: str) -> str:
    """The name itself, if it may name what stands in DNS. Raises FieldError."""
    return _checked_name(name, field, _LABEL_LENGTH)


def _time_at(fields: Fields, key: str) -> str:
    """The time at key, empty if there is none. YAML makes one of a text without quotes."""
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
    if not _is_name(name):
        raise FieldError(field, "must consist of lower-case letters, digits, '-' and '.'")
    return name


def _is_name(value: object) -> TypeGuard[str]:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
