# SPDX-License-Identifier: Apache-2.0
"""Memory maps that are inspected after every single write, and that can fail at any of them."""

from collections.abc import Callable, Iterable, Iterator

from ebpflb.dataplane.kernel.maps import BpfMap, Chunk, MapSet
from ebpflb.dataplane.kernel.uapi import Exist
from ebpflb.dataplane.layout.structs import LbDesc
from ebpflb.model.plan import FrontendKey
from tests.memory_maps import OneByOne
from tests.unit.dataplane.programs import (
    Found,
    Place,
    Sources,
    backend,
    element,
    key_bytes,
    look_up,
    number,
    place,
    slots,
    sources,
)

KEY_SIZE = 20

# A descriptor, its slots, the backends with serial and Service id, and whom it lets in.
Content = tuple[bytes, list[int], list[tuple[Place, int, int]], Sources]


class CrashError(Exception):
    """The agent dies here."""


class WatchedMap(OneByOne):
    """A map that reports every write, of a batch one by one."""

    def __init__(self, inner: BpfMap, before: Callable[[str], None], after: Callable[[], None]):
        self._inner, self._before, self._after = inner, before, after
        self.name, self.cpus = inner.name, inner.cpus
        self.key_size, self.value_size = inner.key_size, inner.value_size
        self.max_entries = inner.max_entries

    def lookup(self, key: bytes) -> bytes | None:
        return self._inner.lookup(key)

    def update(self, key: bytes, value: bytes, *, exist: Exist = Exist.ANY) -> None:
        self._before(self.name)
        self._inner.update(key, value, exist=exist)
        self._after()

    def delete(self, key: bytes) -> bool:
        self._before(self.name)
        found = self._inner.delete(key)
        self._after()
        return found

    def chunks(self, limit: int = 0) -> Iterator[Chunk]:
        return self._inner.chunks(limit)


class Watch:
    """Counts writes, dies at a given one, and calls `inspect` after each."""

    def __init__(self, maps: MapSet) -> None:
        self.plain = maps
        self.maps = {
            name: WatchedMap(each, self._before, self._after) for name, each in maps.items()
        }
        self.written: list[str] = []
        self.crash_at: int | None = None
        self.crash: Exception = CrashError()
        self.inspect: Callable[[], None] = lambda: None

    def _before(self, name: str) -> None:
        if self.crash_at == len(self.written):
            raise self.crash
        self.written.append(name)

    def _after(self) -> None:
        self.inspect()


class Readers:
    """Programs that hold what they found: before a grace period passes, none of it may change.

    The flags of a backend are excepted.
    """

    def __init__(self, maps: MapSet, keys: Iterable[FrontendKey]) -> None:
        self._maps = maps
        self._keys = tuple(keys)
        self._held: dict[int, Content] = {}
        self._owners: dict[int, FrontendKey] = {}

    def quiesce(self) -> None:
        """Every program that was running has ended."""
        self._held.clear()
        self._owners.clear()

    def look(self) -> dict[FrontendKey, Found | None]:
        """Look up everything, and check what was found earlier."""
        found = {key: look_up(self._maps, key) for key in self._keys}
        for key, each in found.items():
            if each is not None:
                self._held.setdefault(each.desc, self._content(each.desc))
                self._owners.setdefault(each.place, key)
        for desc, content in self._held.items():
            assert self._content(desc) == content, f"descriptor {desc} changed under a reader"
        for index, key in self._owners.items():
            word = number(self._maps, "lb_current", index)
            desc_frontend = element(self._maps, "lb_descs", word)[:KEY_SIZE]
            assert word == 0 or desc_frontend == key_bytes(key), f"index {index} was reused"
        return found

    def _content(self, index: int) -> Content:
        desc = LbDesc.from_buffer_copy(element(self._maps, "lb_descs", index))
        indices = [*slots(self._maps, desc.local), *slots(self._maps, desc.others)]
        backends = [backend(self._maps, each) for each in indices]
        named = [(place(each), each.serial, each.service) for each in backends]
        return bytes(desc), indices, named, sources(self._maps, desc)
