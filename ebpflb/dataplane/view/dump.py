# SPDX-License-Identifier: Apache-2.0
"""How full each map is, and its elements as plain values: dicts, lists, strings and numbers.

Addresses, protocols, flags and enum members become words; zero elements of arrays are left out; the
numbers of a per-CPU map are summed over all CPUs. Times stay nanoseconds since boot.
"""

import ctypes
import re
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntFlag
from pathlib import Path
from typing import Any, NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap, KernelMap, MapSet
from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.capacity import MAPS, MapSpec
from ebpflb.dataplane.layout.enums import EnumType, word
from ebpflb.dataplane.layout.records import SERVING, USABLE, DescRecord, Subnet
from ebpflb.dataplane.layout.structs import LbBackend, Struct, field_names
from ebpflb.dataplane.services.map_state import ranges_of
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.dataplane.services.source_ranges import ID_BITS
from ebpflb.errors import PinError
from ebpflb.model.address import Address, format_address
from ebpflb.model.source_ranges import Prefix

Plain = str | int | list[Any] | dict[str, Any]

_KEYS: Mapping[str, EnumType] = {
    "lb_flow_lost": enums.FlowLost,
    "lb_count_xdp": enums.XdpResult,
}


_NUMBER = 8


class Element(NamedTuple):
    """One element of a map."""

    key: Plain
    value: Plain


def decode_map(source: BpfMap) -> list[Element]:
    """The elements in the order of their keys.

    Raises MapError, and PinError for a map made by another version.
    """
    spec = MAPS.get(source.name)
    if spec is None or not _fits(source, spec):
        raise PinError(f"map {source.name}: made by another version, cannot be decoded")
    blank = bytes(source.value_size) if spec.is_array else None
    elements = [(_native(spec.key, key), value) for key, value in source.items() if value != blank]
    elements.sort(key=lambda element: _rank(element[0]))
    return [
        Element(_plain(key, _KEYS.get(source.name)), _plain(_sum(spec.value, value)))
        for key, value in elements
    ]


def _fits(source: BpfMap, spec: MapSpec) -> bool:
    width = ctypes.sizeof(spec.value)
    stride = width if source.cpus == 1 else width + -width % _NUMBER
    return (source.key_size, source.value_size) == (ctypes.sizeof(spec.key), stride * source.cpus)


def _native(kind: Any, value: bytes) -> Any:
    """A struct of structs.py, or a number."""
    found = kind.from_buffer_copy(value)
    return found if isinstance(found, Struct) else found.value


def _sum(kind: Any, value: bytes) -> Any:
    """Like `_native()`, with numbers summed over all CPUs."""
    width = ctypes.sizeof(kind)
    if len(value) <= width:
        return _native(kind, value)
    numbers = array("Q", value)
    step = width // _NUMBER
    return _native(kind, array("Q", (sum(numbers[at::step]) for at in range(step))).tobytes())


def _rank(key: Struct | int) -> int | bytes:
    return key if isinstance(key, int) else bytes(key)


def _plain(value: Any, words: EnumType | None = None) -> Plain:
    if words is not None:
        return _in_words(words, value)
    if isinstance(value, Struct):
        return _plain_struct(value)
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, ctypes.Array):
        return (
            bytes(value).hex() if value._type_ is structs.u8 else [_plain(each) for each in value]
        )
    return int(value)


def _plain_struct(value: Struct) -> Plain:
    if isinstance(value, structs.LbAddr):
        return format_address(Address(bytes(value)))
    if isinstance(value, structs.LbTunnelKeys):
        return "secret"
    if isinstance(value, structs.LbPortRange):
        return f"{value.first}-{value.last}"
    if isinstance(value, structs.LbSourceRange):
        prefix = Prefix(Address(bytes(value.addr)), value.length - ID_BITS)
        return {"source_ranges": int(value.source_ranges), "range": str(prefix)}
    if isinstance(value, structs.LbSubnet):
        ifindex, next_hops = Subnet.unpack(bytes(value))
        return {"ifindex": ifindex, "next_hops": str(next_hops)}
    return {
        name: _plain(getattr(value, name), type(value).enums.get(name))
        for name in field_names(type(value))
        if name != "pad"
    }


def _in_words(words: EnumType, value: int) -> Plain:
    if issubclass(words, IntFlag):
        flags = [word(member) for member in words if member & value]
        strange = value & ~sum(words)
        return [*flags, hex(strange)] if strange else flags
    known = {int(member): member for member in words}
    return word(known[value]) if value in known else value


# Arrays indexed like another map.
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
    """How many elements of a map are in use. MapError."""
    name = _FOLLOWS.get(name, name)
    if name in ("lb_current", "lb_descs"):
        return len(_descs(maps))
    if name == "lb_slots":
        return sum(place.length for place in {r for desc in _descs(maps) for r in ranges_of(desc)})
    if name in ("lb_backends", "lb_count_back"):
        backends = Mirror(maps["lb_backends"])
        backends.load()
        flags = backends.column(LbBackend.flags.offset, "H")
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
