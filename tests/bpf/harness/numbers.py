# SPDX-License-Identifier: Apache-2.0
"""Numbers as stored in maps, and flags for creating maps."""

from sys import byteorder

from ebpflb.dataplane.kernel.uapi import MapType

NO_PREALLOC = 1


def u32(number: int) -> bytes:
    """A key or value of 4 bytes."""
    return int(number).to_bytes(4, byteorder)


def u64(number: int) -> bytes:
    """A value of 8 bytes."""
    return int(number).to_bytes(8, byteorder)


def map_flags(kind: MapType) -> int:
    """Creation flags for that type of map: the kernel does not preallocate tries."""
    return NO_PREALLOC if kind is MapType.LPM_TRIE else 0


def number(value: bytes) -> int:
    """The reverse of `u32()` and `u64()`."""
    return int.from_bytes(value, byteorder)
