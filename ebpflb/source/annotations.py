# SPDX-License-Identifier: Apache-2.0
"""The annotations of ebpflb on Services, where invalid ones are ignored, Pods and Namespaces."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from ebpflb.config import values
from ebpflb.model.extensions.annotated import NOTHING, Annotated
from ebpflb.model.extensions.weights import HEAVIEST, Share, Weights
from ebpflb.source.typed import FieldError, excerpt
from ebpflb.words import annotations as words
from ebpflb.words.scheduler import Scheduler

T = TypeVar("T")

_PATH = "metadata.annotations"
_PODS = "pods"


class _Syntax(NamedTuple):
    """field: of Annotated. parse: raises ValueError. text: the reverse."""

    field: str
    parse: Callable[[str], object]
    text: Callable[[Any], str] = str


def _one_of(choices: Mapping[str, T]) -> Callable[[str], T]:
    def parse(text: str) -> T:
        if text not in choices:
            raise ValueError(f"must be one of {', '.join(choices)}")
        return choices[text]

    return parse


def _switch_text(is_on: bool) -> str:
    return str(is_on).lower()


_switch = _one_of({"true": True, "false": False})
_weight = values.Number(0, HEAVIEST)


def _weights(text: str) -> Weights:
    return Weights() if text == _PODS else Weights(tuple(map(_share, text.split(","))))


def _share(text: str) -> Share:
    label, colon, weight = text.strip().rpartition(":")
    key, equals, value = label.partition("=")
    if not (colon and equals and key.strip()):
        raise ValueError(f"must be {_PODS}, or LABEL=VALUE:WEIGHT, separated by commas")
    return Share(key.strip(), value.strip(), _weight(weight))


def _weights_text(weights: Weights) -> str:
    return ",".join(f"{key}={value}:{weight}" for key, value, weight in weights.shares) or _PODS


_OF_SERVICES: Mapping[str, _Syntax] = {
    words.SCHEDULER: _Syntax("scheduler", _one_of({each.value: each for each in Scheduler})),
    words.EJECTION: _Syntax("ejection", values.ejection),
    words.DSR: _Syntax("dsr", _switch, _switch_text),
    words.RETRY: _Syntax("retry", _switch, _switch_text),
    words.WEIGHTS: _Syntax("weights", _weights, _weights_text),
}


def socket_lb(annotations: object) -> bool | None:
    """Of a Pod or a Namespace; None without the annotation. FieldError."""
    return _parsed(annotations, words.SOCKET_LB, _switch)


def of_service(annotations: object) -> tuple[Annotated, tuple[str, ...]]:
    """What they ask for, and what is wrong with them, one line each."""
    if not annotations:
        return NOTHING, ()
    if not isinstance(annotations, dict):
        return NOTHING, (f"{_PATH}: must be an object, not {excerpt(annotations)}",)
    found, problems = dict[str, Any](), list(_unknown(annotations))
    for name, syntax in _OF_SERVICES.items():
        try:
            found[syntax.field] = _parsed(annotations, name, syntax.parse)
        except FieldError as error:
            problems.append(f"{error}; the default is used")
    given = {field: value for field, value in found.items() if value is not None}
    return (Annotated(**given) if given else NOTHING), tuple(problems)


def text_of(annotated: Annotated) -> Mapping[str, str]:
    """The annotations that ask for this."""
    usual = NOTHING
    return {
        name: syntax.text(getattr(annotated, syntax.field))
        for name, syntax in _OF_SERVICES.items()
        if getattr(annotated, syntax.field) != getattr(usual, syntax.field)
    }


def _unknown(annotations: Mapping[str, object]) -> Iterator[str]:
    for name in annotations:
        if name.startswith(words.PREFIX) and name not in _OF_SERVICES:
            hint = values.near(name, _OF_SERVICES)
            yield f"{_PATH}.{name}: no annotation of a Service{hint}; it is ignored"


def _parsed(annotations: object, name: str, parse: Callable[[str], T]) -> T | None:
    """None without the annotation, or if it is empty. FieldError."""
    if annotations is None:
        return None
    if not isinstance(annotations, dict):
        raise FieldError(_PATH, f"must be an object, not {excerpt(annotations)}")
    text = annotations.get(name)
    if text is None or text == "":
        return None
    if not isinstance(text, str):
        raise FieldError(f"{_PATH}.{name}", f"must be text, not {excerpt(text)}")
    try:
        return parse(text)
    except ValueError as error:
        raise FieldError(f"{_PATH}.{name}", f"{error}, not {excerpt(text)}") from error
