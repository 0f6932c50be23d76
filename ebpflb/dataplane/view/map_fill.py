# SPDX-License-Identifier: Apache-2.0
"""How full each map is and how much memory it takes, from the maps alone."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ebpflb.dataplane.kernel.maps import BpfMap, KernelMap, MapSet
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.records import SERVING, USABLE, DescRecord
from ebpflb.dataplane.layout.structs import LbBackend
from ebpflb.dataplane.services.map_state import ranges_of
from ebpflb.dataplane.services.mirror import Mirror

# Arrays with one element for each element of another map.
_FOLLOWS = {"lb_addr_flags": "lb_addrs", "lb_count_front": "lb_frontends"}
_MEMLOCK = re.compile(r"^memlock:\s+([0-9]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MapFill:
    """One map. used: elements in force. memory: in bytes."""

    name: str
    type: str
    used: int
    max: int
    memory: int


def map_fills(maps: MapSet) -> list[MapFill]:
    """All maps by name. MapError."""
    return [
        MapFill(
            name,
            MAPS[name].kind.name.lower() if name in MAPS else "unknown",
            used_entries(maps, name),
            table.max_entries,
            _memory(table),
        )
        for name, table in sorted(maps.items())
    ]


def used_entries(maps: MapSet, name: str) -> int:
    """How many elements of a map are in force. MapError."""
    name = _FOLLOWS.get(name, name)
    if name in ("lb_current", "lb_descs"):
        return len(_descs(maps))
    if name == "lb_slots":
        return sum(place.length for place in {r for desc in _descs(maps) for r in ranges_of(desc)})
    if name in ("lb_backends", "lb_count_back"):
        backends = Mirror(maps["lb_backends"])
        backends.load()
        flags = backends.column(LbBackend.flags.offset)
        return sum(each & (USABLE | SERVING) != 0 for each in flags)
    table = maps[name]
    if name in MAPS and MAPS[name].is_array:
        zero = bytes(table.value_size)
        return sum(value != zero for _, value in table.items())
    return sum(chunk.size for chunk in table.chunks())


def _descs(maps: MapSet) -> list[DescRecord]:
    descs = Mirror(maps["lb_descs"])
    words = list(_words(maps["lb_current"]))
    descs.load()
    return [DescRecord.unpack(descs[word]) for word in words if 0 < word < descs.size]


def _words(current: BpfMap) -> Iterator[int]:
    for chunk in current.chunks():
        yield from memoryview(chunk.values).cast("Q")


def _memory(table: BpfMap) -> int:
    """As the kernel reports it, else the size of the elements."""
    if isinstance(table, KernelMap):
        facts = Path(f"/proc/self/fdinfo/{table.fd}").read_text()
        if found := _MEMLOCK.search(facts):
            return int(found[1])
    return (table.key_size + table.value_size) * table.max_entries
