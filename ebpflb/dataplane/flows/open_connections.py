# SPDX-License-Identifier: Apache-2.0
"""Corrects lb_open, where the programs count the open connections of backends.

They do not see every end: an entry that is evicted or expires does not report it. So each count is
moved halfway towards the number in the flow tables, again and again. A new backend starts at the
mean of the others, which gives it a slow start: its advantage grows in halves.
"""

from collections.abc import Callable, Iterator, Mapping
from sys import byteorder

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import DescFlag
from ebpflb.dataplane.layout.records import (
    BackendRecord,
    pack_index,
    pack_open,
)
from ebpflb.dataplane.layout.structs import LbDesc
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.dataplane.services.open_counts import open_of

_COUNTS_OPEN = int(DescFlag.LB_DESC_COUNTS_OPEN)

Uses = Mapping[tuple[int, int], int]
"""Index and serial of a backend -> how many flows and connected sockets use it."""


def correct_open_connections(maps: MapSet, count: Callable[[], Uses]) -> int:
    """One step, for the Services that are scheduled by these counts. MapError.

    `count` runs in between, and the counts before it, after it and in between are all acceptable.
    Returns how many counts were changed. The programs may add between a lookup and an update here;
    the next step makes up for it.
    """
    backends = list(_counted_backends(maps))
    if not backends:
        return 0
    counts = maps["lb_open"]
    before = {index: open_of(maps, index) for index, _ in backends}
    uses = count()
    changed = 0
    for index, serial in backends:
        now = open_of(maps, index)
        if step := step_towards(uses.get((index, serial), 0), before[index], now):
            counts.update(pack_index(index), pack_open(now + step))
            changed += 1
    return changed


def step_towards(used: int, before: int, now: int) -> int:
    """What to add to a count that was and is so high before and after flows were counted."""
    low, high = sorted((before, now))
    return _half_of(used - min(max(used, low), high))


def _half_of(distance: int) -> int:
    """Rounded away from zero, so that the last steps reach the target."""
    half = (abs(distance) + 1) // 2
    return half if distance > 0 else -half


def _counted_backends(maps: MapSet) -> Iterator[tuple[int, int]]:
    services = _counted_services(maps)
    if not services:
        return
    for key, value in maps["lb_backends"].items():
        record = BackendRecord.unpack(value)
        if record.service in services:
            yield int.from_bytes(key, byteorder), record.serial


def _counted_services(maps: MapSet) -> set[int]:
    """Includes replaced descriptors: correcting their counts does no harm."""
    descs = Mirror(maps["lb_descs"])
    descs.load()
    services = descs.column(LbDesc.service.offset)
    flags = descs.column(LbDesc.flags.offset, "H")
    return {services[index] for index, each in enumerate(flags) if each & _COUNTS_OPEN}
