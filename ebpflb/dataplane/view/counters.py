# SPDX-License-Identifier: Apache-2.0
"""The counters of all CPUs added up, with the names of what they count. Needs the maps alone."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import byteorder

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.layout.records import (
    USABLE,
    BackendRecord,
    DescRecord,
    frontend_key_of,
    unpack_name,
)
from ebpflb.dataplane.layout.structs import DropKey
from ebpflb.dataplane.services.mirror import Mirror, Words
from ebpflb.dataplane.view.sums import sums
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import ServicePortName

_REASONS = frozenset(DropReason)


@dataclass(frozen=True, slots=True)
class FrontendCounts:
    """What one frontend met since it came."""

    key: FrontendKey
    service: ServicePortName
    counts: Counts


@dataclass(frozen=True, slots=True)
class BackendCounts:
    """What one backend was given since it came. The key: its address; `usable`: still offered."""

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
    counted = list(sums(maps["lb_count_front"]))
    for key, value in maps["lb_frontends"].items():
        index = int.from_bytes(value, byteorder)
        desc = DescRecord.unpack(descs[current.word(index)])
        if desc.frontend == key and desc.service in names:
            place = frontend_key_of(key)
            service = unpack_name(names[desc.service], place.protocol)
            yield FrontendCounts(place, service, Counts(*counted[index]))


def read_backends(maps: MapSet) -> Iterator[BackendCounts]:
    """Every backend of a Service port that is there, also one that only flows use. MapError."""
    names = _names(maps)
    backends = maps["lb_backends"].items()
    for (_, value), counted in zip(backends, sums(maps["lb_count_back"]), strict=True):
        record = BackendRecord.unpack(value)
        usable = bool(record.flags & USABLE)
        if record.service in names and (usable or any(counted)):
            place = frontend_key_of(record.socket)
            service = unpack_name(names[record.service], place.protocol)
            yield BackendCounts(place, service, usable, Counts(*counted))


def read_drops(maps: MapSet) -> Mapping[tuple[DropReason, int], int]:
    """How often each reason occurred, by reason and ifindex or DropPlace. MapError.

    A reason that this version does not know is left out.
    """
    found: dict[tuple[DropReason, int], int] = {}
    for key, value in maps["lb_count_drop"].items():
        place = DropKey.from_buffer_copy(key)
        if place.reason in _REASONS:
            found[DropReason(place.reason), place.ifindex] = sum(memoryview(value).cast("Q"))
    return found


def sum_drops(drops: Mapping[tuple[DropReason, int], int]) -> Mapping[DropReason, int]:
    """How often each reason occurred, wherever that was."""
    sums = dict.fromkeys(DropReason, 0)
    for (reason, _), count in drops.items():
        sums[reason] += count
    return sums


def _names(maps: MapSet) -> Mapping[int, bytes]:
    return {int.from_bytes(key, byteorder): value for key, value in maps["lb_names"].items()}
