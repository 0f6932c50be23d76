# SPDX-License-Identifier: Apache-2.0
"""The compact answer of `ebpflb top`: what each Service port carries on the node.

Numbers cover the whole sample: as integers they are shorter than rates.
"""

from collections.abc import Iterable
from typing import Annotated, NamedTuple

import msgspec

from ebpflb.cli.compact import Count
from ebpflb.model.ejection import EjectionState
from ebpflb.model.flow import ON_REMOVED, BackendRate, ServiceRate

SUMS = (
    *("connections", "active", "refused", "dropped", "failed", "retransmits"),
    *("original_bytes", "reply_bytes"),
)
BACKEND_SUMS = ("connections", "active", "failed", "original_bytes", "reply_bytes")
# Shorter than any interval: no rate becomes infinite.
_OF_PORT = msgspec.Meta(min_length=len(SUMS), max_length=len(SUMS))
_OF_BACKEND = msgspec.Meta(min_length=len(BACKEND_SUMS), max_length=len(BACKEND_SUMS))
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Seconds = Annotated[float, msgspec.Meta(ge=1e-3)]


class PortName(NamedTuple):
    """Identifies a Service port."""

    namespace: str
    service: str
    port: str
    protocol: str


class BackendAddress(NamedTuple):
    """Address and port of a backend."""

    address: str
    port: int


class BackendForm(NamedTuple):
    """A backend that takes new connections. ejection: not one that is left out."""

    place: BackendAddress
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

    place: BackendAddress
    numbers: Annotated[tuple[Count, ...], _OF_BACKEND]
    state: BackendState


class PortRow(NamedTuple):
    """A Service port on one node. form: a PortForm as JSON. numbers: SUMS; None if all are 0.

    columns: BACKEND_SUMS of all of the form's backends; None if all are 0. more: other backends,
    and those of the form that have a state of their own; they have 0 in the columns.
    """

    form: msgspec.Raw
    numbers: Annotated[tuple[Count, ...], _OF_PORT] | None = None
    far: _Share | None = None
    troubles: tuple[str, ...] = ()
    columns: Annotated[tuple[tuple[Count, ...], ...], _OF_BACKEND] | None = None
    more: tuple[BackendRow, ...] = ()


class RatesOfNode(NamedTuple):
    seconds: _Seconds
    ports: list[PortRow]


rates_decoder = msgspec.json.Decoder(RatesOfNode)
form_decoder = msgspec.json.Decoder(PortForm)


def rates_of_node(seconds: float, services: Iterable[ServiceRate]) -> RatesOfNode:
    return RatesOfNode(seconds, [_row(each, seconds) for each in services])


def _row(service: ServiceRate, seconds: float) -> PortRow:
    ordinary = sorted(filter(_is_ordinary, service.backends), key=_place)
    form = PortForm(
        PortName(service.namespace, service.service, service.port, service.protocol),
        tuple(BackendForm(_place(each), each.terminating, _ejection_of(each)) for each in ordinary),
    )
    nothing = (0,) * len(BACKEND_SUMS)
    rows = [
        _counted(each, BACKEND_SUMS, seconds) if _is_usual(each) else nothing for each in ordinary
    ]
    numbers = _counted(service, SUMS, seconds)
    return PortRow(
        msgspec.Raw(msgspec.json.encode(form)),
        numbers if any(numbers) else None,
        service.cross_node_share,
        # How many connections are on removed pods depends on all nodes.
        tuple(each for each in service.troubles if not each.endswith(ON_REMOVED)),
        tuple(zip(*rows, strict=True)) if any(map(any, rows)) else None,
        tuple(
            BackendRow(_place(each), _counted(each, BACKEND_SUMS, seconds), _state(each))
            for each in service.backends
            if not _is_usual(each)
        ),
    )


def _place(backend: BackendRate) -> BackendAddress:
    return BackendAddress(backend.address, backend.port)


def _ejection_of(backend: BackendRate) -> EjectionState:
    return EjectionState.of(backend.ejection)


def _state(backend: BackendRate) -> BackendState:
    known = {name: getattr(backend, name) for name in BackendState._fields}
    return BackendState(**known | {"ejection": _ejection_of(backend)})


def _is_ordinary(backend: BackendRate) -> bool:
    return backend.offered and not backend.is_left_out


def _is_usual(backend: BackendRate) -> bool:
    """Whether its form says all but its numbers. The name of a pod is told by its own node."""
    return _is_ordinary(backend) and not (backend.local or backend.trouble or backend.removed)


def _counted(
    rate: ServiceRate | BackendRate, names: Iterable[str], seconds: float
) -> tuple[int, ...]:
    return tuple(
        round(number if name == "active" else number * seconds)
        for name in names
        for number in (getattr(rate, name),)
    )
