# SPDX-License-Identifier: Apache-2.0
"""lb_limits: the limits of Service ports, by Service id.

An element is there before a descriptor says so, and until none does. A program that finds none,
because it still uses an older descriptor, knows no limits.

A client may be ahead of a rate by minutes, or by hours. With another rate it begins anew, or it
would have to wait as long as before. Open connections are corrected only where a client's are
limited (client_uses.py): when that comes, they are counted anew, or clients of which many ends were
missed could open none.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.records import pack_index
from ebpflb.dataplane.layout.structs import LbClientKey, LbClientUse, LbLimit
from ebpflb.dataplane.services.slots import NoRoomError


class _Anew(NamedTuple):
    """Which fields of struct lb_client_use begin at zero again."""

    open: bool
    due: bool


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
        anew = {
            each: found
            for each, value in records.items()
            if any(found := _anew(value, self.of(each)))
        }
        self._records.update(records)
        self._table.update_batch([(pack_index(each), value) for each, value in records.items()])
        if anew:
            self._begin_anew(anew)

    def _begin_anew(self, services: Mapping[int, _Anew]) -> None:
        for key, value in self._clients.items():
            found = services.get(LbClientKey.from_buffer_copy(key).service)
            if not found:
                continue
            use = LbClientUse.from_buffer_copy(value)
            left = LbClientUse(0 if found.open else use.open, 0 if found.due else use.due)
            if bytes(left) != value:
                self._clients.update(key, bytes(left))

    def remove(self, identities: Iterable[int]) -> None:
        """Those of them that are there. MapError."""
        gone = [each for each in identities if each in self._records]
        self._table.delete_batch(list(map(pack_index, gone)))
        for each in gone:
            del self._records[each]

    def keep(self, limited: Collection[int]) -> None:
        """Remove all others. MapError."""
        self.remove([each for each in self._records if each not in limited])


def _anew(record: bytes, before: bytes | None) -> _Anew:
    new = LbLimit.from_buffer_copy(record)
    old = LbLimit.from_buffer_copy(before) if before else LbLimit()
    is_other_rate = (new.interval, new.burst) != (old.interval, old.burst)
    return _Anew(open=bool(new.client_open and not old.client_open), due=is_other_rate)
