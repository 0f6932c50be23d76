# SPDX-License-Identifier: Apache-2.0
"""lb_limits: the limits of Service ports, by Service id.

An element is there before a descriptor says so, and until none does. A program that finds none,
because it still uses an older descriptor, knows no limits.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.records import pack_index
from ebpflb.dataplane.services.slots import NoRoomError


class LimitRecords:
    """The elements of the map, packed, by Service id."""

    def __init__(self, table: BpfMap) -> None:
        self.capacity = table.max_entries
        self._table = table
        self._records: dict[int, bytes] = {}

    @property
    def used(self) -> int:
        """How many elements there are, or will be."""
        return len(self._records)

    def load(self) -> None:
        """Read the map."""
        self._records = {
            int.from_bytes(key, byteorder): value for key, value in self._table.items()
        }

    def keys(self) -> Iterator[bytes]:
        return map(pack_index, self._records)

    def value(self, key: bytes) -> bytes | None:
        """What the map has for a key, or None."""
        return self.of(int.from_bytes(key, byteorder))

    def of(self, identity: int) -> bytes | None:
        """What the map has for a Service id, or None."""
        return self._records.get(identity)

    def take(self, identity: int) -> None:
        """Room for an element to be written; until then it is empty. NoRoomError."""
        if len(self._records) >= self.capacity:
            raise NoRoomError
        self._records[identity] = b""

    def give(self, identity: int) -> None:
        """Give the room back, if the element has not been written."""
        if not self._records.get(identity, b"-"):
            del self._records[identity]

    def write(self, records: Mapping[int, bytes]) -> None:
        """Write elements that have room. MapError."""
        self._records.update(records)
        self._table.update_batch([(pack_index(each), value) for each, value in records.items()])

    def remove(self, identities: Iterable[int]) -> None:
        """Those of them that are there. MapError."""
        gone = [each for each in identities if each in self._records]
        self._table.delete_batch(list(map(pack_index, gone)))
        for each in gone:
            del self._records[each]

    def keep(self, limited: Collection[int]) -> None:
        """Remove all others. MapError."""
        self.remove([each for each in self._records if each not in limited])
