# SPDX-License-Identifier: Apache-2.0
"""The compact answer of `ebpflb top`: what each Service port carries on the node.

Rates are whole thousandths per second, which are shorter than fractions, and added faster.
"""

from collections.abc import Iterable
from itertools import chain
from typing import Annotated, NamedTuple

import msgspec

from ebpflb.model.compact import Count
from ebpflb.model.ejection import EjectionState
from ebpflb.model.flow import ON_REMOVED, BackendRate, ServiceRate

SUMS = (
    *("connections", "active", "refused", "dropped", "failed", "retransmits"),
    *("original_bytes", "reply_bytes"),
)
BACKEND_SUMS = ("connections", "active", "failed", "original_bytes", "reply_bytes")
THOUSANDTHS = 1000
_OF_PORT = msgspec.Meta(min_length=len(SUMS), max_length=len(SUMS))
_OF_BACKEND = msgspec.Meta(min_length=len(BACKEND_SUMS), max_length=len(BACKEND_SUMS))
SocketText = tuple[str, int]
"""A SocketAddress whose address is text."""
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class PortName(NamedTuple):
    """Identifies a Service port."""

    namespace: str
    service: str
    port: str
    protocol: str


class BackendForm(NamedTuple):
    """A backend that takes new connections. ejection: not one that is left out."""

    place: SocketText
    terminating: bool
    ejection: EjectionState


class PortForm(NamedTuple):
    """The part of a Service port that should be the same on all nodes: its ordinary backends."""

    name: PortName
    backends: tuple[BackendForm, ...]


class BackendState(NamedTuple):
    """What is known of a backend besides its numbers, as in BackendRate."""

    local: bool = False
    terminating: bool = False
    offered: bool = True
    ejection: EjectionState = EjectionState.UNWATCHED
    trouble: str = ""
    removed: bool = False
    pod: str = ""


class BackendRow(NamedTuple):
    """numbers: BACKEND_SUMS."""

    place: SocketText
    numbers: Annotated[tuple[Count, ...], _OF_BACKEND]
    state: BackendState


class PortRow(NamedTuple):
    """A Service port on one node. form: a PortForm as JSON. numbers: SUMS; None if all are 0.

    backends: BACKEND_SUMS of the form's backends, one after the other; None if all are 0. more:
    other backends, and those of the form that have a state of their own, whose numbers are here.
    """

    form: msgspec.Raw
    numbers: Annotated[tuple[Count, ...], _OF_PORT] | None = None
    far: _Share | None = None
    troubles: tuple[str, ...] = ()
    backends: tuple[Count, ...] | None = None
    more: tuple[BackendRow, ...] = ()


rates_decoder = msgspec.json.Decoder(list[PortRow])
form_decoder = msgspec.json.Decoder(PortForm)


def port_row(service: ServiceRate, *, has_names: bool = False) -> PortRow:
    """`has_names`: with those of all pods; else a pod's name is told by its own node."""
    usual = {each for each in service.backends if _is_usual(each, has_names=has_names)}
    ordinary = sorted(filter(_is_ordinary, service.backends), key=_place)
    form = PortForm(
        PortName(service.namespace, service.service, service.port, service.protocol),
        tuple(
            BackendForm(_place(each), each.terminating, EjectionState.of(each.ejection))
            for each in ordinary
        ),
    )
    nothing = (0,) * len(BACKEND_SUMS)
    rows = [_whole(each, BACKEND_SUMS) if each in usual else nothing for each in ordinary]
    numbers = _whole(service, SUMS)
    return PortRow(
        msgspec.Raw(msgspec.json.encode(form)),
        numbers if any(numbers) else None,
        service.cross_node_share,
        # How many connections are on removed pods depends on all nodes.
        tuple(each for each in service.troubles if not each.endswith(ON_REMOVED)),
        tuple(chain.from_iterable(rows)) if any(map(any, rows)) else None,
        tuple(
            BackendRow(_place(each), _whole(each, BACKEND_SUMS), _state(each))
            for each in service.backends
            if each not in usual
        ),
    )


def _place(backend: BackendRate) -> SocketText:
    return backend.address, backend.port


def _state(backend: BackendRate) -> BackendState:
    known = {name: getattr(backend, name) for name in BackendState._fields}
    return BackendState(**known | {"ejection": EjectionState.of(backend.ejection)})


def _is_ordinary(backend: BackendRate) -> bool:
    return backend.offered and not backend.is_left_out


def _is_usual(backend: BackendRate, *, has_names: bool) -> bool:
    """Whether its form says all but its numbers."""
    has_more = backend.local or backend.trouble or backend.removed or (has_names and backend.pod)
    return _is_ordinary(backend) and not has_more


def _whole(rate: ServiceRate | BackendRate, names: Iterable[str]) -> tuple[int, ...]:
    return tuple(round((getattr(rate, name) or 0) * THOUSANDTHS) for name in names)
