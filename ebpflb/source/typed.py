# SPDX-License-Identifier: Apache-2.0
"""JSON, or fields, as one of the types in api_types.py; or which field is wrong, and how."""

import json
import re
import threading
from functools import cache
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

T = TypeVar("T", bound=msgspec.Struct)

_LONGEST_EXCERPT = 40
# How msgspec says where an error is.
_PLACE = re.compile(r" - at (?P<is_name>`key` in )?`\$\.?(?P<path>.*)`\Z")
_STEP = re.compile(r"\[(?P<index>\d+)\]|(?P<name>[^.\[\]]+)")
# Made once for each type.
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}
_making = threading.Lock()
_described = cache(inspect.type_info)
_MISSING = re.compile(r"Object missing required field `(.*?)`")


class FieldError(Exception):
    """An invalid field."""

    def __init__(self, path: str, problem: str) -> None:
        """`path`: from the whole object on; empty for the object itself."""
        super().__init__(f"{path}: {problem}" if path else problem)


def quickly(raw: bytes | msgspec.Raw, kind: type[T]) -> T | None:
    """From JSON; None if anything about it is odd: from_json() and checked() tell what."""
    decoder = _decoder(kind)
    try:
        return decoder.decode(raw)
    except (ValueError, RecursionError):
        return None


def checked(document: object, kind: type[T]) -> T:
    """From fields as from_json() gives them. Raises FieldError."""
    _decoder(kind)
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise _named(str(error), document, kind) from error


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Made by one thread at a time: msgspec (0.22) notes what it knows of a type, and of its parts,
    before that is complete; another thread that uses it meanwhile crashes the process.
    """
    found = _decoders.get(kind)
    if found is None:
        with _making:
            found = _decoders.setdefault(kind, msgspec.json.Decoder(kind))
    return found


def excerpt(value: object) -> str:
    """A value in an error: short, and in one line."""
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
            return str(value)[:_LONGEST_EXCERPT]


def _named(text: str, document: object, kind: type[msgspec.Struct]) -> FieldError:
    """What is wrong in our words: msgspec's name its types, and not the value that was found."""
    place = _PLACE.search(text)
    path = place["path"] if place else ""
    if missing := _MISSING.match(text):
        return FieldError(".".join(filter(None, (path, missing[1]))), "is missing")
    if place and place["is_name"]:
        return FieldError(path, "must have texts as names")
    value: Any = document
    wanted = _described(kind)
    for step in _STEP.finditer(path):
        value = list(value)[int(step["index"])] if step["index"] else value[step["name"]]
        wanted = _within(wanted, step["name"])
    is_member = path.endswith("]")
    if value in (None, "") and not is_member:
        return FieldError(path, "is missing")
    return FieldError(path, _refusal(wanted, value))


def _within(outer: inspect.Type, name: str) -> inspect.Type:
    """The type of a field, or of a list's members, that may not be null."""
    if isinstance(outer, inspect.StructType):
        found = next(each.type for each in outer.fields if each.encode_name == name)
    elif isinstance(outer, inspect.CollectionType):
        found = outer.item_type
    if isinstance(found, inspect.UnionType):
        return next(each for each in found.types if not isinstance(each, inspect.NoneType))
    return found


def _refusal(wanted: inspect.Type, value: object) -> str:
    if isinstance(wanted, inspect.StrType) and isinstance(value, str):
        if wanted.max_length is not None and len(value) > wanted.max_length:
            return f"must have at most {wanted.max_length} characters"
        return "must consist of lower-case letters, digits, '-' and '.'"
    return f"must be {_words(wanted)}, not {excerpt(value)}"


def _words(wanted: inspect.Type) -> str:
    match wanted:
        case inspect.IntType():
            return f"a whole number from {wanted.ge} to {wanted.le}"
        case inspect.LiteralType():
            return f"one of {', '.join(str(each) for each in wanted.values if each)}"
    return _WORDS.get(type(wanted), "an object")


_WORDS = {inspect.StrType: "text", inspect.BoolType: "true or false", inspect.ListType: "a list"}
