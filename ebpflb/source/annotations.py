# SPDX-License-Identifier: Apache-2.0
"""The annotations of ebpflb on Services, where invalid ones are ignored, Pods and Namespaces."""

from collections.abc import Mapping
from typing import TypeVar

from ebpflb.config import values
from ebpflb.source.fields import FieldError, Fields, choice_at, object_at, text_at
from ebpflb.words import annotations as words
from ebpflb.words.scheduler import Scheduler

T = TypeVar("T")

_SCHEDULERS = {member.value: member for member in Scheduler}
_SWITCH = {"true": True, "false": False}


def socket_lb(document: Fields) -> bool | None:
    """None without the annotation. FieldError."""
    return _annotation(document, words.SOCKET_LB, _SWITCH)


def scheduler(document: Fields) -> tuple[Scheduler | None, tuple[str, ...]]:
    """The scheduler, and what is wrong with the annotation."""
    return _lenient(document, words.SCHEDULER, _SCHEDULERS)


def dsr(document: Fields) -> tuple[bool | None, tuple[str, ...]]:
    """Whether the Service has DSR, and what is wrong with the annotation."""
    return _lenient(document, words.DSR, _SWITCH)


def ejection(document: Fields) -> tuple[int | None, tuple[str, ...]]:
    """The threshold, and what is wrong with the annotation."""

    def annotated(annotations: Fields) -> int | None:
        text = text_at(annotations, words.EJECTION)
        try:
            return values.ejection(text) if text else None
        except ValueError as error:
            raise FieldError(words.EJECTION, f"{text!r}: {error}") from error

    try:
        return object_at(
            document, "metadata", lambda fields: object_at(fields, "annotations", annotated)
        ), ()
    except FieldError as error:
        return None, (f"{error}; the default is used",)


def _annotation(document: Fields, name: str, choices: Mapping[str, T]) -> T | None:
    """The value in choices for an annotation; None without the annotation. FieldError."""

    def choice(annotations: Fields) -> T | None:
        return choice_at(annotations, name, choices, None)

    def annotated(metadata: Fields) -> T | None:
        return object_at(metadata, "annotations", choice)

    return object_at(document, "metadata", annotated)


def _lenient(
    document: Fields, name: str, choices: Mapping[str, T]
) -> tuple[T | None, tuple[str, ...]]:
    """Like _annotation(), and what is wrong with it; an invalid one is ignored."""
    try:
        return _annotation(document, name, choices), ()
    except FieldError as error:
        return None, (f"{error}; the default is used",)
