# SPDX-License-Identifier: Apache-2.0
"""The annotations of ebpflb on Services, where invalid ones are ignored, Pods and Namespaces."""

from collections.abc import Mapping
from typing import TypeVar

from ebpflb.config import values
from ebpflb.source.typed import FieldError, excerpt
from ebpflb.words import annotations as words
from ebpflb.words.scheduler import Scheduler

T = TypeVar("T")

_SCHEDULERS = {member.value: member for member in Scheduler}
_SWITCH = {"true": True, "false": False}


_PATH = "metadata.annotations"


def socket_lb(annotations: object) -> bool | None:
    """None without the annotation. FieldError."""
    return _choice(annotations, words.SOCKET_LB, _SWITCH)


def scheduler(annotations: object) -> tuple[Scheduler | None, tuple[str, ...]]:
    """The scheduler, and what is wrong with the annotation."""
    return _lenient(annotations, words.SCHEDULER, _SCHEDULERS)


def dsr(annotations: object) -> tuple[bool | None, tuple[str, ...]]:
    """Whether the Service has DSR, and what is wrong with the annotation."""
    return _lenient(annotations, words.DSR, _SWITCH)


def ejection(annotations: object) -> tuple[int | None, tuple[str, ...]]:
    """The threshold, and what is wrong with the annotation."""
    text = ""
    try:
        text = _text(annotations, words.EJECTION)
        return values.ejection(text) if text else None, ()
    except FieldError as error:
        return None, (f"{error}; the default is used",)
    except ValueError as error:
        return None, (f"{_PATH}.{words.EJECTION}: {text!r}: {error}; the default is used",)


def _text(annotations: object, name: str) -> str:
    """Empty without the annotation. FieldError."""
    if annotations is None:
        return ""
    if not isinstance(annotations, dict):
        raise FieldError(_PATH, f"must be an object, not {excerpt(annotations)}")
    value = annotations.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    raise FieldError(f"{_PATH}.{name}", f"must be text, not {excerpt(value)}")


def _choice(annotations: object, name: str, choices: Mapping[str, T]) -> T | None:
    """The value in choices for an annotation; None without the annotation. FieldError."""
    text = _text(annotations, name)
    if text and text not in choices:
        problem = f"must be one of {', '.join(choices)}, not {excerpt(text)}"
        raise FieldError(f"{_PATH}.{name}", problem)
    return choices.get(text)


def _lenient(
    annotations: object, name: str, choices: Mapping[str, T]
) -> tuple[T | None, tuple[str, ...]]:
    """Like _choice(), and what is wrong with it; an invalid one is ignored."""
    try:
        return _choice(annotations, name, choices), ()
    except FieldError as error:
        return None, (f"{error}; the default is used",)
