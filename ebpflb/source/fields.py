# SPDX-License-Identifier: Apache-2.0
"""Typed access to the fields of an API object; null counts as absent everywhere."""

import json
from collections.abc import Callable, Mapping
from sys import intern
from typing import Any, TypeVar

Fields = Mapping[str, Any]
_LONGEST_SHOWN = 40
T = TypeVar("T")


class FieldError(Exception):
    """A field that cannot be used; the path grows on the way up to the whole object."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}" if path else problem)
        self.path = path
        self.problem = problem

    def within(self, parent: str) -> "FieldError":
        """The same error, seen from the object that has the field parent."""
        return FieldError(f"{parent}.{self.path}" if self.path else parent, self.problem)


def as_fields(value: object) -> Fields:
    """The value itself if it is an object."""
    if isinstance(value, dict):
        return value
    raise FieldError("", f"must be an object, not {_shown(value)}")


def object_at(fields: Fields, key: str, decode: Callable[[Fields], T]) -> T:
    """decode() of the object at key, of an empty one if there is none."""
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
        raise FieldError(key, f"must be a list, not {_shown(members)}")
    results = []
    for index, member in enumerate(members):
        try:
            results.append(decode(member))
        except FieldError as error:
            raise error.within(f"{key}[{index}]") from error
    return results


def as_text(value: object) -> str:
    """The value itself if it is text."""
    if isinstance(value, str):
        return value
    raise FieldError("", f"must be text, not {_shown(value)}")


def text_at(fields: Fields, key: str) -> str:
    """The text at key, empty if there is none. Equal texts are one object."""
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
    raise FieldError(key, f"must be true or false, not {_shown(value)}")


def number_at(fields: Fields, key: str, last: int) -> int:
    """The whole number from 0 to last at key, 0 if there is none."""
    value = fields.get(key)
    if value is None:
        return 0
    if type(value) is int and 0 <= value <= last:
        return value
    raise FieldError(key, f"must be a whole number up to {last}, not {_shown(value)}")


def choice_at(fields: Fields, key: str, choices: Mapping[str, T], default: T) -> T:
    """What choices holds for the text at key."""
    text = text_at(fields, key)
    if not text:
        return default
    if text not in choices:
        raise FieldError(key, f"must be one of {', '.join(choices)}, not {_shown(text)}")
    return choices[text]


def _shown(value: object) -> str:
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case None | bool() | float():
            return json.dumps(value)
        case str():
            return json.dumps(value[:_LONGEST_SHOWN])
        case int() if value.bit_length() > _LONGEST_SHOWN:
            return "one that large"
        case _:
            return str(value)
