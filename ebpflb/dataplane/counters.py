# SPDX-License-Identifier: Apache-2.0
"""The counters of all CPUs added up, with the names of what they count. Needs the maps alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import byteorder

from ebpflb.dataplane.maps import BpfMap, MapSet
from ebpflb.dataplane.mirror import Mirror, Words
from ebpflb.dataplane.records import (
    USABLE,
    BackendRecord,
    DescRecord,
    SocketAddress,
    unpack_name,
)
from ebpflb.dataplane.structs import DropReason
from ebpflb.model.address import Protocol
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import ServicePortName

_NUMBER_SIZE = 8


@dataclass(frozen=True, slots=True)
class Counts:
    """New connections and flows since the frontend or backend came."""

    connections: int
    refused: int
    dropped: int


@dataclass(frozen=True, slots=True)
class FrontendCounts:
    """What one frontend met."""

    key: FrontendKey
    service: ServicePortName
    counts: Counts


@dataclass(frozen=True, slots=True)
class BackendCounts:
    """What one backend was given. The key is its own address; `usable`: it is still offered."""

    key: FrontendKey
    service: ServicePortName
    usable: bool
    counts: Counts


def read_frontends(maps: MapSet) -> Iterator[FrontendCounts]:
    """Every frontend. MapError."""
    names = _names(maps)
    current, descs = Words(maps["lb_current"]), Mirror(maps["lb_descs"])
    current.load()
    descs.load()
    sums = list(_sums(maps["lb_count_front"]))
    for key, value in maps["lb_frontends"].items():
        index = int.from_bytes(value, byteorder)
        desc = DescRecord.unpack(descs[current.word(index)])
        if desc.frontend == key and desc.service in names:
            place = _key(key)
            service = unpack_name(names[desc.service], place.protocol)
            yield FrontendCounts(place, service, Counts(*sums[index]))


def read_backends(maps: MapSet) -> Iterator[BackendCounts]:
    """Every backend of a Service port that is there, also one that only flows use. MapError."""
    names = _names(maps)
    backends = maps["lb_backends"].items()
    for (_, value), sums in zip(backends, _sums(maps["lb_count_back"]), strict=True):
        record = BackendRecord.unpack(value)
        usable = bool(record.flags & USABLE)
        if record.service in names and (usable or any(sums)):
            place = _key(record.socket)
            service = unpack_name(names[record.service], place.protocol)
            yield BackendCounts(place, service, usable, Counts(*sums))


def read_drops(maps: MapSet) -> Mapping[DropReason, int]:
    """How often each reason occurred. MapError."""
    sums = list(_sums(maps["lb_count_drop"]))
    return {reason: sums[reason][0] for reason in DropReason}


def _key(socket: bytes) -> FrontendKey:
    address, port, protocol = SocketAddress.unpack(socket)
    return FrontendKey(address, port, Protocol(protocol))


def _names(maps: MapSet) -> Mapping[int, bytes]:
    return {int.from_bytes(key, byteorder): value for key, value in maps["lb_names"].items()}


def _sums(counters: BpfMap) -> Iterator[tuple[int, ...]]:
    """For each index the numbers of its struct, each the sum over all CPUs."""
    width = counters.value_size // _NUMBER_SIZE
    stride = width // counters.cpus
    for chunk in counters.chunks():
        numbers = memoryview(chunk.values).cast("Q")
        columns = [numbers[at::width].tolist() for at in range(width)]
        yield from zip(
            *(map(sum, zip(*columns[at::stride], strict=True)) for at in range(stride)), strict=True
        )
