# SPDX-License-Identifier: Apache-2.0
"""Deletes expired session affinity: the kernel does not evict entries from lb_affinity."""

import time
from array import array
from collections.abc import Callable, Mapping

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet, split
from ebpflb.dataplane.layout.structs import LbAffinity, LbClientKey, LbDesc, packed_format
from ebpflb.dataplane.services.mirror import Mirror

_SECOND = 1_000_000_000
_BUDGET = 2048
_SERVICE = packed_format(LbClientKey, "service")
_LAST_USED = packed_format(LbAffinity, "last_used")


def expire_affinity(maps: MapSet, clock: Callable[[], int] = time.monotonic_ns) -> int:
    """Returns how many entries were deleted. MapError. `clock`: CLOCK_MONOTONIC in nanoseconds.

    The timeout is 0 if an entry's Service is gone or no longer has affinity. If the table is then
    still more than three quarters full, the least recently used entries are deleted until it is
    half full: strangers must not keep new clients out for hours.
    """
    table = maps["lb_affinity"]
    timeouts = _timeouts(maps)
    times: array[int] = array("Q")
    deleted = _delete(table, lambda service: clock() - timeouts.get(service, 0) * _SECOND, times)
    if len(times) > table.max_entries * 3 // 4:
        oldest = sorted(times)[len(times) - table.max_entries // 2]
        deleted += _delete(table, lambda _: oldest, array("Q"))
    return deleted


def _delete(table: BpfMap, oldest: Callable[[int], int], kept: "array[int]") -> int:
    """Delete entries last used before `oldest` of their Service; appends the other times."""
    deleted = 0
    for chunk in table.chunks(_BUDGET):
        for key, value in split(table, chunk.keys, chunk.values):
            bound = oldest(_SERVICE.unpack(key)[0])
            # The client may have returned since the chunk was read.
            is_over = _last_used(value) < bound and _last_used(table.lookup(key)) < bound
            if is_over:
                deleted += table.delete(key)
            else:
                kept.append(_last_used(value))
    return deleted


def _last_used(value: bytes | None) -> int:
    return int(_LAST_USED.unpack(value)[0]) if value else 0


def _timeouts(maps: MapSet) -> Mapping[int, int]:
    """Seconds by Service id; also uses replaced descriptors, if their timeouts are longer."""
    descs = Mirror(maps["lb_descs"])
    descs.load()
    found: dict[int, int] = {}
    services = descs.column(LbDesc.service.offset)
    for service, seconds in zip(
        services, descs.column(LbDesc.affinity_timeout.offset), strict=True
    ):
        if seconds:
            found[service] = max(found.get(service, 0), seconds)
    return found
