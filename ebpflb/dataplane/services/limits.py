# SPDX-License-Identifier: Apache-2.0
"""lb_limits: the limits of Service ports, by Service id.

An element is there before a descriptor says so, and until none does. A program that finds none,
because it still uses an older descriptor, knows no limits.

A client may be ahead of a rate by minutes, or by hours. With another rate it begins anew, or it
would have to wait as long as before.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.records import pack_index
from ebpflb.dataplane.layout.structs import LbClientKey, LbClientUse, LbLimit
from ebpflb.dataplane.services.slots import NoRoomError


class LimitRecords:
    """The elements of the map, packed, by Service id."""

    def __init__(self, table: BpfMap, clients: BpfMap) -> None:
        """`clients`: what they use of the limits."""
        self.capacity = table.max_entries
        self._table = table
        self._clients = clients
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
        changed = {each for each, value in records.items() if _rate(value) != _rate(self.of(each))}
        self._records.update(records)
        self._table.update_batch([(pack_index(each), value) for each, value in records.items()])
        if changed:
            self._begin_anew(changed)

    def _begin_anew(self, services: Container[int]) -> None:
        for key, value in self._clients.items():
            use = LbClientUse.from_buffer_copy(value)
            if use.due and LbClientKey.from_buffer_copy(key).service in services:
                use.due = 0
                self._clients.update(key, bytes(use))

    def remove(self, identities: Iterable[int]) -> None:
        """Those of them that are there. MapError."""
        gone = [each for each in identities if each in self._records]
        self._table.delete_batch(list(map(pack_index, gone)))
        for each in gone:
            del self._records[each]

    def keep(self, limited: Collection[int]) -> None:
        """Remove all others. MapError."""
        self.remove([each for each in self._records if each not in limited])


def _rate(record: bytes | None) -> tuple[int, int]:
    limit = LbLimit.from_buffer_copy(record) if record else LbLimit()
    return limit.interval, limit.burst
