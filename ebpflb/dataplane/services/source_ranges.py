# SPDX-License-Identifier: Apache-2.0
"""lb_src_ranges: sets of source ranges, each under its own id, which descriptors refer to.

A set is never changed. Other ranges become another set under a new id, so that the descriptor
switches packets atomically; the old set is deleted once no program can use it.
"""

from collections.abc import Collection, Iterable, Iterator

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.structs import LbSourceRange, packed_format
from ebpflb.dataplane.services.slots import NoRoomError, Pool
from ebpflb.model.address import Address
from ebpflb.model.source_ranges import Prefix, Prefixes

# The bits of the id come before those of the address.
ID_BITS = 32

_KEY = packed_format(LbSourceRange)
_IDS = 1 << ID_BITS
_ALLOWED = b"\1"
_LONG_AGO = float("-inf")


class SourceRanges(Pool[int]):
    """The sets in the map. No id is reused before all have been used."""

    def __init__(self, table: BpfMap) -> None:
        super().__init__()
        self.capacity = table.max_entries
        self.available = self.capacity
        self._table = table
        self._sets: dict[int, Prefixes] = {}
        self._next = 1

    def load(self) -> None:
        """Read the map."""
        found: dict[int, list[Prefix]] = {}
        for key, _ in self._table.items():
            length, identity, address = _KEY.unpack(key)
            found.setdefault(identity, []).append(Prefix(Address(address), length - ID_BITS))
        self._sets = {identity: tuple(sorted(prefixes)) for identity, prefixes in found.items()}
        self._next = max(self._sets, default=0) % (_IDS - 1) + 1
        self.available = self.capacity - sum(map(len, self._sets.values()))

    def keys(self) -> Iterator[bytes]:
        """Those of all sets."""
        return (key for identity in self._sets for key in self._keys(identity))

    def value(self, key: bytes) -> bytes | None:
        """What the map has for a key, or None."""
        length, identity, address = _KEY.unpack(key)
        prefix = Prefix(Address(address), length - ID_BITS)
        return _ALLOWED if prefix in self.prefixes(identity) else None

    def restore(self, used: Iterable[int]) -> None:
        """Only `used` are in use; all others may be deleted."""
        self.retire(sorted(self._sets.keys() - set(used)), _LONG_AGO)

    def prefixes(self, identity: int) -> Prefixes:
        """A set; empty if there is none with that id."""
        return self._sets.get(identity, ())

    def take(self, prefixes: Prefixes) -> int:
        """An id for a set to be written. NoRoomError if it does not fit."""
        if len(prefixes) > self.available:
            raise NoRoomError
        identity = self._next
        while identity in self._sets:
            identity = identity % (_IDS - 1) + 1
        self._next = identity % (_IDS - 1) + 1
        self._sets[identity] = prefixes
        self.available -= len(prefixes)
        return identity

    def give(self, identity: int) -> None:
        """Free a set at once that has not been written."""
        self.available += len(self._sets.pop(identity))

    def write(self, identities: Iterable[int]) -> None:
        """Write allocated sets. MapError."""
        keys = (key for identity in identities for key in self._keys(identity))
        self._table.update_batch([(key, _ALLOWED) for key in keys])

    def _free_retired(self, lot: Collection[int]) -> None:
        self._table.delete_batch([key for identity in lot for key in self._keys(identity)])
        for identity in lot:
            self.give(identity)

    def _keys(self, identity: int) -> list[bytes]:
        return [
            _KEY.pack(ID_BITS + prefix.length, identity, prefix.address)
            for prefix in self._sets[identity]
        ]
