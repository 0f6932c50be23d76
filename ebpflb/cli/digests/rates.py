# SPDX-License-Identifier: Apache-2.0
"""The short answer of `ebpflb top`: backends that are busy, in trouble or local.

For all others, one digest per Service port stands for its name and its backends.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from sys import intern
from typing import Any, NamedTuple

from ebpflb.cli.digests import digest
from ebpflb.config.values import socket_address
from ebpflb.model.ejection import STANDINGS, Standing
from ebpflb.model.flow import ON_REMOVED, BackendRate, ServiceRate

SUMS = (
    *("connections", "active", "refused", "dropped", "failed", "retransmits"),
    *("original_bytes", "reply_bytes"),
)
BACKEND_SUMS = ("connections", "active", "failed", "original_bytes", "reply_bytes")
# Shorter than any interval: no rate becomes infinite.
_LEAST_SECONDS = 1e-3

PortName = tuple[str, str, str, str]
Place = tuple[str, int]


class PortForm(NamedTuple):
    """The part of a Service port that should be the same on all nodes: its ordinary backends.

    backends: address, port, whether it is terminating, standing.
    """

    name: PortName
    backends: tuple[tuple[str, int, bool, str], ...]

    @classmethod
    def of(cls, service: ServiceRate) -> "PortForm":
        ordinary = (
            (each.address, each.port, each.terminating, each.standing)
            for each in service.backends
            if _is_ordinary(each)
        )
        return cls(name_of(service), tuple(sorted(ordinary)))

    @property
    def digest(self) -> str:
        """The same on all nodes whose Service port has this form."""
        return digest(self.name, self.backends)


class BackendState(NamedTuple):
    """What is known of a backend besides its numbers, as in BackendRate."""

    local: bool = False
    terminating: bool = False
    offered: bool = True
    standing: str = Standing.UNWATCHED.word
    trouble: str = ""
    removed: bool = False
    pod: str = ""


class PortRates(NamedTuple):
    """What a Service port carries on a node, and the backends that its digest does not cover.

    numbers: SUMS, all but `active` per second. columns: BACKEND_SUMS of each of the `places`, which
    are address:port separated by spaces. states: of the places whose state is not the usual one.
    """

    name: PortName
    numbers: Sequence[float]
    far: float | None
    troubles: tuple[str, ...]
    places: str
    columns: Sequence[Sequence[float]]
    states: Mapping[Place, BackendState]


class RatesOfNode(NamedTuple):
    digests: Sequence[str]
    ports: Sequence[PortRates]


def name_of(service: ServiceRate) -> PortName:
    return service.namespace, service.service, service.port, service.protocol


def _written(backend: BackendRate) -> str:
    return socket_address(backend.address, backend.port)


def _is_ordinary(backend: BackendRate) -> bool:
    return backend.offered and backend.standing in STANDINGS and not backend.is_left_out


def short(seconds: float, services: Iterable[ServiceRate]) -> dict[str, Any]:
    """Counts cover the whole interval: as integers they are shorter than rates."""
    digests, rows = [], []
    for service in services:
        reported = [each for each in service.backends if not _is_reported_elsewhere(each)]
        has_more = len(reported) < len(service.backends)
        if has_more:
            digests.append(PortForm.of(service).digest)
        if reported or not has_more or not service.is_idle:
            rows.append(_row(service, reported, seconds))
    return {"seconds": seconds, "digests": digests, "services": rows}


def _is_reported_elsewhere(backend: BackendRate) -> bool:
    """Whether another node reports it, and it carries nothing here."""
    is_usual = _is_ordinary(backend) and not (backend.local or backend.trouble)
    return is_usual and not any(_numbers(backend, BACKEND_SUMS))


def _numbers(rate: ServiceRate | BackendRate, names: Iterable[str]) -> list[float]:
    return [getattr(rate, name) for name in names]


def _row(service: ServiceRate, backends: Sequence[BackendRate], seconds: float) -> list[Any]:
    return [
        name_of(service),
        _counted(service, SUMS, seconds),
        service.cross_node_share,
        # How many connections are on removed pods depends on all nodes.
        [each for each in service.troubles if not each.endswith(ON_REMOVED)],
        " ".join(map(_written, backends)),
        list(zip(*(_counted(each, BACKEND_SUMS, seconds) for each in backends), strict=True)),
        {_written(each): state for each in backends if (state := _unusual(each))},
    ]


def _counted(rate: ServiceRate | BackendRate, names: Iterable[str], seconds: float) -> list[int]:
    return [
        round(number if name == "active" else number * seconds)
        for name, number in zip(names, _numbers(rate, names), strict=True)
    ]


def _unusual(backend: BackendRate) -> dict[str, Any]:
    """The name of a pod is told once, by its own node, and with everything else that is unusual."""
    usual = BackendState()._asdict()
    found = {name: value for name in usual if (value := getattr(backend, name)) != usual[name]}
    return found if found.keys() - {"pod"} else {}


def read_short(content: Mapping[str, Any]) -> RatesOfNode:
    seconds = float(content["seconds"])
    if seconds < _LEAST_SECONDS:
        raise ValueError(f"rates of {seconds} s")
    return RatesOfNode(
        [intern(each) for each in content["digests"]],
        [_port(seconds, row) for row in content["services"]],
    )


def _port(seconds: float, row: Sequence[Any]) -> PortRates:
    (namespace, service, port, protocol), counts, far, troubles, places, columns, states = row
    width = len(split(places))
    if len(counts) != len(SUMS) or any(len(column) != width for column in columns):
        raise ValueError("columns of different lengths")
    connections, active, *others = counts
    return PortRates(
        (str(namespace), str(service), str(port), str(protocol)),
        [connections / seconds, int(active), *[each / seconds for each in others]],
        None if far is None else float(far),
        tuple(map(str, troubles)),
        places,
        _rates(columns, seconds) if width else (),
        {split(place)[0]: _state(state) for place, state in states.items()},
    )


def _rates(columns: Sequence[Sequence[Any]], seconds: float) -> list[list[float]]:
    connections, active, failed, original_bytes, reply_bytes = columns
    return [
        [each / seconds for each in connections],
        list(map(int, active)),
        *([each / seconds for each in column] for column in (failed, original_bytes, reply_bytes)),
    ]


# Most nodes send the same texts.
@lru_cache(maxsize=10_000)
def split(places: str) -> tuple[Place, ...]:
    """Address and port of each of the `places` of PortRates."""
    parts = (each.rpartition(":") for each in places.split())
    return tuple((address.strip("[]"), int(port)) for address, _, port in parts)


def _state(fields: Mapping[str, Any]) -> BackendState:
    state = BackendState(**fields)
    if state.standing not in STANDINGS:
        raise ValueError(f"unknown standing {state.standing}")
    return state._replace(trouble=str(state.trouble), pod=str(state.pod))
