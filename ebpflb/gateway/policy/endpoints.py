# SPDX-License-Identifier: Apache-2.0
"""The EndpointSlices of a Gateway's Service: those of the backends, with weights."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ebpflb.gateway.policy.backends import RouteBackend
from ebpflb.gateway.policy.found import FoundObjects, is_ours
from ebpflb.gateway.policy.objects import GivenSlice
from ebpflb.gateway.policy.shares import BackendSize, endpoint_weights
from ebpflb.words.annotations import SLICE_WEIGHT
from ebpflb.words.gateway import SLICE_MANAGED_BY

Fields = Mapping[str, Any]

_FAMILIES = ("IPv4", "IPv6")
# Hints are for the Service that the slice is of.
_LEFT_OUT = ("hints", "hostname", "deprecatedTopology")


class WantedPort(NamedTuple):
    """A port of a Gateway's Service."""

    name: str
    protocol: str
    number: int


class _Copied(NamedTuple):
    """A slice of a backend, and the port of its endpoints."""

    piece: GivenSlice
    port: int


def wanted_slices(
    port: WantedPort, backends: Sequence[RouteBackend], found: FoundObjects
) -> Iterator[tuple[str, Fields]]:
    """What tells each from the others of the same Service, and its fields without metadata.names.

    A backend shares its weight among its ready endpoints, in each family of its own. One with
    weight 0 keeps its open connections, as long as another one can take the new ones.
    """
    for family in _FAMILIES:
        copied = {each: list(_copied(each, family, found)) for each in backends}
        ready = {each: sum(map(_ready, pieces)) for each, pieces in copied.items()}
        if not any(ready[each] for each in backends if each.weight):
            copied = {each: pieces for each, pieces in copied.items() if each.weight}
        sizes = [
            BackendSize(each.weight, ready[each] or sum(map(_number, pieces)))
            for each, pieces in copied.items()
        ]
        weights = endpoint_weights(sizes)
        is_even = len(set(weights)) == 1
        for (backend, pieces), weight in zip(copied.items(), weights, strict=True):
            for each in pieces:
                yield (
                    _told_apart(port, backend, each),
                    _fields(port, each, None if is_even else weight),
                )


def _copied(backend: RouteBackend, family: str, found: FoundObjects) -> Iterator[_Copied]:
    wanted = backend.port_name, backend.protocol
    for piece in found.slices.get(backend.service, ()):
        # Never a copy of a copy.
        if piece.address_type != family or is_ours(piece, SLICE_MANAGED_BY):
            continue
        for port in piece.ports or ():
            if (port.name or "", port.protocol or "TCP") == wanted and port.port:
                yield _Copied(piece, port.port)


def _ready(copied: _Copied) -> int:
    given = [each.get("conditions") for each in copied.piece.endpoints or ()]
    return sum(not (isinstance(each, dict) and each.get("ready") is False) for each in given)


def _number(copied: _Copied) -> int:
    return len(copied.piece.endpoints or ())


def _told_apart(port: WantedPort, backend: RouteBackend, copied: _Copied) -> str:
    parts = (port.name, *copied.piece.key, copied.piece.address_type, str(backend.port))
    return hashlib.sha256("/".join(parts).encode()).hexdigest()[:16]


def _fields(port: WantedPort, copied: _Copied, weight: int | None) -> Fields:
    return {
        "annotations": {} if weight is None else {SLICE_WEIGHT: str(weight)},
        "addressType": copied.piece.address_type,
        "ports": [{"name": port.name, "protocol": port.protocol, "port": copied.port}],
        "endpoints": [
            {name: value for name, value in each.items() if name not in _LEFT_OUT}
            for each in copied.piece.endpoints or ()
        ],
    }
