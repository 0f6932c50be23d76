# SPDX-License-Identifier: Apache-2.0
"""The elements of any map as plain values: dicts, lists, strings and numbers, fit for JSON.

Addresses, protocols, flags and enum members come out as words; zero elements of arrays do not come
out; the numbers of a per-CPU map are sums over all CPUs. Times stay nanoseconds since boot.
"""

import ctypes
from array import array
from collections.abc import Mapping
from enum import IntFlag
from typing import Any, NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.capacity import MAPS, MapSpec
from ebpflb.dataplane.layout.enums import EnumType, word
from ebpflb.dataplane.layout.structs import Struct, field_names
from ebpflb.dataplane.services.source_ranges import ID_BITS
from ebpflb.errors import PinError
from ebpflb.model.address import Address, format_address
from ebpflb.model.source_ranges import Prefix

Plain = str | int | list[Any] | dict[str, Any]

_KEYS: Mapping[str, EnumType] = {"lb_flow_lost": enums.FlowLost}


_NUMBER = 8


class Element(NamedTuple):
    """One element of a map."""

    key: Plain
    value: Plain


def decode_map(source: BpfMap) -> list[Element]:
    """The elements in the order of their keys.

    Raises MapError, and PinError for a map that another version made.
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
    """As `_native()`; of the numbers of several CPUs the sums."""
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
    if isinstance(value, structs.LbPortRange):
        return f"{value.first}-{value.last}"
    if isinstance(value, structs.LbSourceRange):
        prefix = Prefix(Address(bytes(value.addr)), value.length - ID_BITS)
        return {"source_ranges": int(value.source_ranges), "range": str(prefix)}
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
