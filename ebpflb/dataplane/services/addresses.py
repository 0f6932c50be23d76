# SPDX-License-Identifier: Apache-2.0
"""The addresses that packets are looked up by: VIPs and the node's own, in lb_addrs.

An address has the flags of all its users. An address that is no longer used keeps its entry,
without flags, because flows may still refer to it; `forget()` deletes it. What the filter lets pass
because of it, or of a NodePort, passes for as long, because the packets of those flows must.

Programs find an address by its index in lb_dest_filter, without a hash lookup. Of several with the
same index, the one with the highest flags is named there: a node's address, because the port of a
VIP is found without them. It is named only while lb_addrs has it as well, so its index is never
read while it is reassigned to another address.
"""

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout.enums import AddrFlag, DescFlag, FrontendTypeCode
from ebpflb.dataplane.layout.records import AddrRecord, DescRecord, pack_index
from ebpflb.dataplane.layout.structs import LbDest, packed_format
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.dataplane.services.slots import Indices, NoRoomError
from ebpflb.model.address import Address, Protocol

Referred = Address | int
"""What flows refer to: an address, or the port of NodePorts or of UDP at external IPs."""

# Plain ints: an IntFlag is ten times as slow to combine.
_CLUSTER_IP = int(AddrFlag.LB_ADDR_CLUSTER_IP)
_EXTERNAL = int(AddrFlag.LB_ADDR_EXTERNAL)
_NODE_PORT = int(AddrFlag.LB_ADDR_NODE_PORT)
_EXTERNAL_PORT = int(AddrFlag.LB_ADDR_EXTERNAL_PORT)
_NODE_FLAGS = int(AddrFlag.LB_ADDR_NODE) | _NODE_PORT
# In the filter: those of addresses.
_OF_ADDRESSES = _CLUSTER_IP | _EXTERNAL | int(AddrFlag.LB_ADDR_NODE)
# Those by which an address takes a place in the filter before others.
_RANKING = _OF_ADDRESSES | _NODE_PORT
_DEST = packed_format(LbDest)


def fold(address: Address) -> int:
    """lb_addr_fold(): 16 bits that depend on the whole address."""
    number = int.from_bytes(address, "big")
    number ^= number >> 64
    number ^= number >> 32
    return (number ^ number >> 16) & 0xFFFF


class DestFilter:
    """The filter and its local copy. `flush()` writes what was added."""

    def __init__(self, array: BpfMap) -> None:
        self.elements = Mirror(array)

    def load(self) -> None:
        """Read the map."""
        self.elements.load()

    def has_address(self, address: Address, flags: int) -> bool:
        """Whether packets to an address with these flags pass."""
        passing, _ = self._element(_end(address))
        return not flags & _OF_ADDRESSES & ~passing

    def add_address(self, address: Address, flags: int) -> None:
        """Let packets to an address with these flags (enum lb_addr_flag) pass the filter."""
        self._add(_end(address), flags & _OF_ADDRESSES)

    def add_port(self, port: int, flag: int) -> None:
        """LB_ADDR_NODE_PORT: let packets to this port of a node's address pass the filter.

        LB_ADDR_EXTERNAL_PORT: look at UDP that the node sends from this port (own_udp.h).
        """
        self._add(port, flag)

    def _add(self, index: int, flags: int) -> None:
        passing, known = self._element(index)
        self.elements.set(index, _DEST.pack(passing | flags, known))

    def drop(self, index: int, flags: int) -> None:
        """Take flags away from an element."""
        passing, known = self._element(index)
        self.elements.set(index, _DEST.pack(passing & ~flags, known))

    def passing(self) -> Iterator[tuple[int, int]]:
        """The elements with flags: index and flags. Meanwhile none may be set."""
        for index, number in enumerate(self.elements.column(0, "H")):
            if number:
                yield index, self._element(index)[0]

    def named(self, address: Address) -> int | None:
        """The index of the address that is named at this one's place."""
        _, known = self._element(fold(address))
        return known - 1 if known else None

    def name(self, address: Address, index: int | None) -> None:
        """Name an address at its place, by its index in lb_addr_flags; None: no address."""
        place = fold(address)
        passing, _ = self._element(place)
        self.elements.set(place, _DEST.pack(passing, 0 if index is None else index + 1))

    def _element(self, index: int) -> tuple[int, int]:
        passing, known = _DEST.unpack(self.elements[index])
        return passing, known

    def flush(self) -> None:
        """Write what was added. MapError."""
        self.elements.flush()


def _end(address: Address) -> int:
    return int.from_bytes(address[-2:], "big")


def _subtract(users: Counter[int], each: int) -> None:
    users[each] -= 1
    if not users[each]:
        del users[each]


# The flags that a frontend's type gives its address; a NodePort has no address of its own.
_VIP_FLAGS: Mapping[int, int] = {
    FrontendTypeCode.LB_CLUSTER_IP: _CLUSTER_IP,
    FrontendTypeCode.LB_EXTERNAL_IP: _EXTERNAL,
    FrontendTypeCode.LB_LOAD_BALANCER: _EXTERNAL,
}


# The flags that a frontend passes on to its address.
_PASSED_ON: Mapping[int, int] = {
    int(DescFlag["LB_DESC_" + name]): int(AddrFlag["LB_ADDR_" + name])
    for name in ("UNSERVED_DROP", "UNSERVED_REJECT", "UNSERVED_PASS", "ECHO")
}


_COUNTED = (*dict.fromkeys(_VIP_FLAGS.values()), *_PASSED_ON.values())


def _address_flags(desc: DescRecord) -> Iterator[int]:
    """Those that a frontend gives its address."""
    if flag := _VIP_FLAGS.get(desc.type):
        yield flag
        for given, passed_on in _PASSED_ON.items():
            if desc.flags & given:
                yield passed_on


def _port_flag(desc: DescRecord) -> int:
    """What the filter must have for the port of a frontend, or 0."""
    if desc.type == FrontendTypeCode.LB_NODE_PORT:
        return _NODE_PORT
    is_external = _VIP_FLAGS[desc.type] == _EXTERNAL
    return _EXTERNAL_PORT if is_external and desc.protocol == Protocol.UDP else 0


class Addresses:
    """lb_addrs, lb_addr_flags and lb_dest_filter. Changes are collected; `write()` writes them."""

    def __init__(self, maps: MapSet) -> None:
        self._map = maps["lb_addrs"]
        self._states = Mirror(maps["lb_addr_flags"])
        self._filter = DestFilter(maps["lb_dest_filter"])
        size = min(self._map.max_entries, self._states.size)
        self.indices = Indices(size)
        self._index: dict[Address, int] = {}
        self._unwritten: dict[Address, None] = {}
        # How many frontends give an address a flag, by flag and index.
        self._users = {flag: array("I", bytes(4 * size)) for flag in _COUNTED}
        self._node: dict[Address, int] = {}
        self._touched: set[Address] = set()
        # Those in the maps without flags.
        self._unused: set[Address] = set()
        # How many addresses end with the same 16 bits, and frontends need a flag at a port.
        self._ends = Counter[int]()
        self._port_users = {_NODE_PORT: Counter[int](), _EXTERNAL_PORT: Counter[int]()}
        # The ports at which the filter may have flags that no frontend needs.
        self._left_ports: set[int] = set()
        # What was idle when idle() was called, and has been ever since.
        self._idle: set[Referred] = set()

    @property
    def mirrors(self) -> tuple[tuple[str, Mirror], ...]:
        """The copies of the arrays, by map."""
        return ("lb_addr_flags", self._states), ("lb_dest_filter", self._filter.elements)

    def keys(self) -> Iterator[bytes]:
        """Those of lb_addrs."""
        return map(bytes, self._index)

    def value(self, key: bytes) -> bytes | None:
        """What lb_addrs has for a key, or None."""
        index = self._index.get(Address(key))
        return None if index is None else pack_index(index)

    def load(self) -> None:
        """Read the maps. Then call `use()` for every frontend, and `loaded()`."""
        self._states.load()
        self._filter.load()
        self._index = {
            Address(key): int.from_bytes(value, byteorder) for key, value in self._map.items()
        }
        self.indices.restore(self._index.values())
        words = {address: self._flags_at(index) for address, index in self._index.items()}
        self._node = {
            address: word & _NODE_FLAGS for address, word in words.items() if word & _NODE_FLAGS
        }
        self._unused = {address for address, word in words.items() if not word}
        self._unwritten.clear()
        self._users = {flag: array("I", bytes(4 * len(each))) for flag, each in self._users.items()}
        self._ends = Counter(map(_end, self._index))
        for users in self._port_users.values():
            users.clear()
        self._left_ports.clear()
        self._idle.clear()

    def loaded(self) -> None:
        """Mark addresses left wrong by an interrupted sync, or another version, for `write()`.

        Only at the end of a change are all frontends of an address there, or gone.
        """
        self._touched = {address for address in self._index if not self._is_written(address)}
        for index, flags in list(self._filter.passing()):
            if flags & self._unused_port_flags(index):
                self._left_ports.add(index)
            if flags & _OF_ADDRESSES and not self._ends[index]:
                self._filter.drop(index, _OF_ADDRESSES)

    def _is_written(self, address: Address) -> bool:
        wanted = self._wanted(address)
        if self._states[self._index[address]] != AddrRecord(wanted, address).pack():
            return False
        has_place = not wanted or self._filter.named(address) is not None
        return has_place and self._filter.has_address(address, wanted)

    def _flags_at(self, index: int) -> int:
        return AddrRecord.unpack(self._states[index]).flags

    def reserve(self, address: Address, kind: int) -> bool:
        """Find room for the address of a frontend of type `kind`; is it new? NoRoomError."""
        return kind in _VIP_FLAGS and self._reserve(address)

    def _reserve(self, address: Address) -> bool:
        if address in self._index:
            return False
        self._index[address] = self.indices.take()
        self._ends[_end(address)] += 1
        self._unwritten[address] = None
        return True

    def release(self, address: Address) -> None:
        """Undo a `reserve()` that returned True."""
        self.indices.give(self._index.pop(address))
        _subtract(self._ends, _end(address))
        del self._unwritten[address]

    def use(self, desc: DescRecord) -> None:
        """A frontend was added; its address has an index, unless it is a NodePort."""
        if flag := _port_flag(desc):
            self._filter.add_port(desc.port, flag)
            self._port_users[flag][desc.port] += 1
            self._idle.discard(desc.port)
        self._idle.discard(desc.address)
        self._count(desc, 1)

    def leave(self, desc: DescRecord) -> None:
        """A frontend was removed."""
        if flag := _port_flag(desc):
            _subtract(self._port_users[flag], desc.port)
            self._left_ports.add(desc.port)
        self._count(desc, -1)

    def _unused_port_flags(self, port: int) -> int:
        """The flags that no frontend needs at the port."""
        return sum(flag for flag, users in self._port_users.items() if not users[port])

    def _count(self, desc: DescRecord, step: int) -> None:
        for flag in _address_flags(desc):
            self._users[flag][self._index[desc.address]] += step
            self._touched.add(desc.address)

    def set_node(self, wanted: Mapping[Address, AddrFlag]) -> list[Address]:
        """Replace the node's addresses and write them. Returns those that do not fit."""
        missing = [address for address in wanted if not self._has_room(address)]
        known = wanted.keys() - set(missing)
        self._touched |= self._node.keys() | known
        self._idle -= known
        self._node = {address: int(wanted[address]) for address in known}
        self.write()
        return missing

    def _has_room(self, address: Address) -> bool:
        try:
            self._reserve(address)
        except NoRoomError:
            return False
        return True

    def write(self) -> None:
        """Write the changed flags, then the new addresses, then make them visible to packets."""
        for address in self._touched:
            wanted = self._wanted(address)
            self._states.set(self._index[address], AddrRecord(wanted, address).pack())
            self._filter.add_address(address, wanted)
            if wanted:
                self._unused.discard(address)
            else:
                self._unused.add(address)
        self._states.flush()
        new = [(bytes(key), pack_index(self._index[key])) for key in self._unwritten]
        self._map.update_batch(new)
        for address in self._touched:
            self._name(address)
        self._filter.flush()
        self._touched.clear()
        self._unwritten.clear()

    def _name(self, address: Address) -> None:
        present, index = self._filter.named(address), self._index[address]
        if self._rank(index) > (0 if present is None else self._rank(present)):
            self._filter.name(address, index)

    def _rank(self, index: int) -> int:
        return self._flags_at(index) & _RANKING

    def _wanted(self, address: Address) -> int:
        flags, index = self._node.get(address, 0), self._index[address]
        for flag, users in self._users.items():
            flags |= flag if users[index] else 0
        return flags

    def idle(self) -> Set[Referred]:
        """The addresses without flags, and unused ports: candidates for the next `forget()`."""
        self._idle = {address for address in self._unused if not self._wanted(address)}
        self._idle |= self._left_ports
        return frozenset(self._idle)

    def forget(self, unused: Iterable[Referred], clock: Callable[[], float]) -> None:
        """Delete those of `unused` that no frontend and no device has had since `idle()`.

        The indices of addresses are retired.
        """
        gone = self._idle.intersection(unused)
        addresses = [each for each in gone if not isinstance(each, int)]
        ports = [each for each in gone if isinstance(each, int)]
        for address in addresses:
            if self._filter.named(address) == self._index[address]:
                self._filter.name(address, None)
            _subtract(self._ends, _end(address))
            if not self._ends[_end(address)]:
                self._filter.drop(_end(address), _OF_ADDRESSES)
        for port in ports:
            self._filter.drop(port, self._unused_port_flags(port))
        self._filter.flush()
        self._left_ports -= gone
        self._idle -= gone
        self._unused.difference_update(addresses)
        self._map.delete_batch([bytes(address) for address in addresses])
        self.indices.retire((self._index.pop(address) for address in addresses), clock())
