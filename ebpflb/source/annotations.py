# SPDX-License-Identifier: Apache-2.0
"""The annotations of ebpflb on Services, where invalid ones are ignored, Pods and Namespaces."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from ebpflb.config import values
from ebpflb.model.extensions.annotated import NOTHING, Annotated
from ebpflb.model.extensions.syntax import OF_SERVICES, SLICE_WEIGHT, SWITCH, WEIGHT
from ebpflb.source.typed import FieldError, excerpt
from ebpflb.words import annotations as words

T = TypeVar("T")

_PATH = "metadata.annotations"
# Unknown ones, of which an object has room for thousands: hints take their time.
_MOST_TOLD = 10


def socket_lb(annotations: object) -> bool | None:
    """Of a Pod or a Namespace; None without the annotation. FieldError."""
    return _parsed(annotations, words.SOCKET_LB, SWITCH)


def weight(annotations: object) -> tuple[int | None, str]:
    """Of a Pod, and what is wrong with it, in one line; None without the annotation."""
    try:
        return _parsed(annotations, words.WEIGHT, WEIGHT), ""
    except FieldError as error:
        return None, str(error)


def of_service(annotations: object) -> tuple[Annotated, tuple[str, ...]]:
    """What they ask for, and what is wrong with them, one line each."""
    if not annotations:
        return NOTHING, ()
    if not isinstance(annotations, dict):
        return NOTHING, (f"{_PATH}: must be an object, not {excerpt(annotations)}",)
    found, problems = dict[str, Any](), list(_unknown(annotations))
    for name, syntax in OF_SERVICES.items():
        try:
            found[syntax.field] = _parsed(annotations, name, syntax.parse)
        except FieldError as error:
            problems.append(f"{error}; the default is used")
    given = {field: value for field, value in found.items() if value is not None}
    return (Annotated(**given) if given else NOTHING), tuple(problems)


def slice_weight(annotations: object) -> int | None:
    """Of an EndpointSlice; None without the annotation, and if it is no weight, as in Cilium."""
    try:
        return _parsed(annotations, words.SLICE_WEIGHT, SLICE_WEIGHT)
    except FieldError:
        return None


def _unknown(annotations: Mapping[str, object]) -> Iterator[str]:
    found = (name for name in annotations if name.startswith(words.PREFIX))
    names = [name for name in found if name not in OF_SERVICES]
    for name in names[:_MOST_TOLD]:
        hint = values.near(name, OF_SERVICES)
        yield f"{_PATH}.{name}: no annotation of a Service{hint}; it is ignored"
    if more := len(names[_MOST_TOLD:]):
        yield f"{_PATH}: {more} more with {words.PREFIX} are no annotations of a Service"


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
