# SPDX-License-Identifier: Apache-2.0
"""A sync over memory maps, with programs that look up everything after every single write."""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.plan import Frontend, FrontendKey, FrontendType
from ebpflb.model.service import ServiceName
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import KINDS, Desired
from tests.unit.dataplane.programs import (
    DSR,
    LOCAL,
    TERMINATING,
    USABLE,
    Found,
    Offer,
    Place,
    address_flags,
    address_in_place,
    flags_of,
    offer_of,
    passes_filter,
    place,
    pods_here,
    pods_wanted,
    vip_flags,
)
from tests.unit.dataplane.watching import Readers, Watch

SIZES = {
    "lb_frontends": 16,
    "lb_current": 16,
    "lb_descs": 64,
    "lb_slots": 512,
    "lb_backends": 64,
    "lb_addrs": 16,
    "lb_addr_flags": 16,
    "lb_names": 16,
    "lb_src_ranges": 64,
    "lb_limits": 16,
    "lb_count_front": 16,
    "lb_count_back": 64,
    "lb_conntrack": 16,
    "lb_ct_short": 16,
    "lb_sockets": 16,
    "lb_affinity": 16,
}
ADDRESSES = frozenset(bytes(key.address) for key in KINDS)
BackendName = tuple[object, Place]
CLUSTER_IP = 1


class Moment(NamedTuple):
    """An address after some write: its flags, and which of its frontends programs find."""

    address: bytes
    flags: int
    keys: frozenset[FrontendKey]


class PodMoment(NamedTuple):
    """Which frontends offer DSR after some write, and for which pods packets may come then."""

    keys: frozenset[FrontendKey]
    pods: frozenset[tuple[object, Place]]


class World:
    """`state` is what has been applied; what was seen since then is checked by the next change."""

    def __init__(self, sizes: Mapping[str, int] | None = None) -> None:
        self.watch = Watch(memory_maps({**SIZES, **(sizes or {})}))
        self.maps = self.watch.plain
        self.readers = Readers(self.maps, KINDS)
        self.now = 0.0
        self.state: Desired = {}
        # Half of a Service may be gone after a crash, and then is refused.
        self.crashed = False
        self.sync = self.restarted()
        self.sync.load()
        self.watch.inspect = self._inspect
        self._forget()

    def restarted(self) -> Sync:
        """A new agent's sync over the same maps."""
        return Sync(self.watch.maps, quiesce=self.readers.quiesce, clock=lambda: self.now)

    def _forget(self) -> None:
        self.offers: dict[FrontendKey, list[Offer | None]] = {key: [] for key in KINDS}
        self.backend_flags: dict[BackendName, set[int]] = {}
        self.moments: set[Moment] = set()
        self.pods: set[PodMoment] = set()
        # Frontends whose packets the early filter let pass unseen at some moment.
        self.hidden: set[FrontendKey] = set()

    def _inspect(self) -> None:
        visible = self.readers.look()
        for key, found in visible.items():
            offer = found.offer if found else None
            if self.offers[key][-1:] != [offer]:
                self.offers[key].append(offer)
            if found:
                self._inspect_backends(found)
        self._inspect_pods(visible)
        keys = [key for key, found in visible.items() if found]
        self.hidden.update(key for key in keys if not passes_filter(self.maps, key))
        for address in ADDRESSES:
            here = frozenset(key for key in keys if key.address == address)
            flags = address_flags(self.maps, address) or 0
            self.moments.add(Moment(address, flags, here))
            named = address_in_place(self.maps, address)
            assert named is None or named[1] == address_flags(self.maps, named[0])

    def _inspect_pods(self, visible: Mapping[FrontendKey, Found | None]) -> None:
        with_dsr = {key for key, found in visible.items() if found and found.offer.flags & DSR}
        self.pods.add(PodMoment(frozenset(with_dsr), frozenset(pods_here(self.maps))))

    def _inspect_backends(self, found: Found) -> None:
        for backend in found.backends.values():
            assert backend.serial > 0
            assert backend.flags & USABLE
            name = (found.offer.service, place(backend))
            flags = backend.flags & (LOCAL | TERMINATING)
            self.backend_flags.setdefault(name, set()).add(flags)

    def change(self, desired: Desired) -> set[ServiceName]:
        """Apply what differs, check every moment of it, and return who was refused."""
        changed = dict(difference(self.state, desired))
        refused = set(self.sync.apply(changed))
        self._settle(changed, refused)
        return refused

    def resync(self, desired: Desired) -> set[ServiceName]:
        """The same by a new agent that has to read everything back."""
        self.sync = self.restarted()
        self.sync.load()
        refused = set(self.sync.resync(desired))
        self._settle(dict(difference(self.state, desired)), refused)
        return refused

    def _settle(self, changed: Desired, refused: set[ServiceName]) -> None:
        old, self.state = self.state, outcome(self.state, changed, refused)
        self._inspect()
        self._check_offers(old)
        self._check_flags(old)
        self._check_addresses(old)
        self._check_pods(old)
        self._forget()

    def _check_offers(self, old: Desired) -> None:
        before, after = by_key(old), by_key(self.state)
        for key, seen in self.offers.items():
            first, last = before.get(key), after.get(key)
            assert seen[-1] == last
            assert seen in ([last], [first, last]), f"{key} was neither old nor new"
        assert not self.hidden & before.keys() & after.keys()
        assert all(passes_filter(self.maps, key) for key in after)

    def _check_pods(self, old: Desired) -> None:
        """Those of a frontend are there before it is, and as long as it wants them."""
        before, after = list(every(old)), list(every(self.state))
        first, last = pods_wanted(before), pods_wanted(after)
        assert set(pods_here(self.maps)) == last
        new = {each.key for each in after if each.dsr} - {each.key for each in before if each.dsr}
        wanted = {each.key: pods_wanted([each]) for each in after}
        for keys, pods in self.pods:
            assert pods >= first & last
            for key in keys & new:
                assert pods >= wanted[key]

    def _check_flags(self, old: Desired) -> None:
        before, after = (flags_of(every(each), also_here=True) for each in (old, self.state))
        for name, seen in self.backend_flags.items():
            assert seen <= {before.get(name), after.get(name)}

    def _check_addresses(self, old: Desired) -> None:
        before, after = vip_flags(every(old)), vip_flags(every(self.state))
        for address, flags, keys in self.moments:
            first, last = before.get(address, 0), after.get(address, 0)
            assert flags & first & last == first & last
            assert flags | first | last == first | last
            # Where other ports are refused, its own must be there.
            if flags & CLUSTER_IP and not first & CLUSTER_IP:
                assert keys >= cluster_ips(self.state, address)
            if flags & CLUSTER_IP and not last & CLUSTER_IP and not self.crashed:
                assert keys >= cluster_ips(old, address)
        for address in ADDRESSES:
            assert (address_flags(self.maps, address) or 0) == after.get(address, 0)


def every(desired: Desired) -> Iterator[Frontend]:
    for frontends in desired.values():
        yield from frontends


def by_key(desired: Desired) -> dict[FrontendKey, Offer]:
    return {frontend.key: offer_of(frontend) for frontend in every(desired)}


def difference(old: Desired, new: Desired) -> Iterator[tuple[ServiceName, tuple[Frontend, ...]]]:
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            yield name, new.get(name, ())


def outcome(old: Desired, changed: Desired, refused: Iterable[ServiceName]) -> Desired:
    """The result: a Service that was refused keeps whatever no other one has taken."""
    new = {name: each for name, each in changed.items() if name not in refused}
    taken = {frontend.key for frontend in every(new)}
    kept = {
        name: tuple(each for each in frontends if each.key not in taken)
        for name, frontends in old.items()
        if name not in new
    }
    return {name: each for name, each in {**kept, **new}.items() if each}


def cluster_ips(desired: Desired, address: bytes) -> set[FrontendKey]:
    return {
        frontend.key
        for frontend in every(desired)
        if frontend.key.address == address and frontend.type is FrontendType.CLUSTER_IP
    }
