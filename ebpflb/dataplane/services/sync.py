# SPDX-License-Identifier: Apache-2.0
"""From desired frontends to maps: only the difference is written, and no packet sees a gap.

Each frontend switches with one word from its old backends to the new ones, and a Service that does
not fit keeps everything it had. Stages: staging.py allocates, transaction.py writes in order,
`collect()` frees what was replaced, readback.py reads the maps after a restart.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from errno import E2BIG
from itertools import islice
from typing import NamedTuple

from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.services.addresses import Referred
from ebpflb.dataplane.services.comparison import compared
from ebpflb.dataplane.services.failures import read_failures
from ebpflb.dataplane.services.map_state import MapState
from ebpflb.dataplane.services.open_counts import read_open
from ebpflb.dataplane.services.readback import read_back
from ebpflb.dataplane.services.staging import Staged, stage
from ebpflb.dataplane.services.transaction import Transaction
from ebpflb.errors import MapError
from ebpflb.model.address import Address
from ebpflb.model.ejection import FailureCounts
from ebpflb.model.plan import Frontend, FrontendKey
from ebpflb.model.service import ServiceName, ServicePortName

# Services written together: limits the memory of a first sync.
_GROUP = 256
_GRACE = 1.0

Desired = Mapping[ServiceName, Sequence[Frontend]]
Refused = Mapping[ServiceName, MapError]


class Usage(NamedTuple):
    """How full a map is."""

    used: int
    size: int


class Moving(NamedTuple):
    """What a change moves. comes: a Service with no frontend yet; leaving: ids of ports that go."""

    comes: bool
    leaving: frozenset[int]


class Sync:
    """Writes the maps of frontends; nobody else may. Not thread-safe.

    A MapError that is raised, not returned, means that a write failed. What was written is then
    unknown; the next call reads the maps back by itself, and the caller retries.
    """

    def __init__(
        self,
        maps: MapSet,
        *,
        quiesce: Callable[[], None] = membarrier,
        clock: Callable[[], float] = time.monotonic,
        grace: float = _GRACE,
        epoch: int = 0,
    ) -> None:
        """`grace`: seconds for which replaced items are not reused, besides `quiesce`.

        `epoch`: the first serial of backends in empty maps, because flows may be older.
        """
        self._maps = maps
        self._quiesce = quiesce
        self._clock = clock
        self._grace = grace
        self._epoch = epoch
        self._state: MapState | None = None
        self._ended_udp = False

    def load(self) -> None:
        """Read the maps back and free what an interrupted sync left behind.

        Waits for a grace period. If the last sync was complete, writes nothing.
        """
        self._state = None
        self._state = self._read_back()

    def _read_back(self) -> MapState:
        self._ended_udp = True
        state = MapState(self._maps, self._epoch)
        read_back(state)
        self._quiesce()
        return state

    def apply(self, changed: Desired) -> Refused:
        """Give each Service these frontends; without any it is removed.

        Returns the Services that do not fit, which keep what they had. A frontend of another
        Service moves; if two of these want the same one, the first by name gets it.
        """
        with self._loaded() as state:
            return self._apply(state, changed)

    def resync(self, desired: Desired) -> Refused:
        """Like `apply()`, and every other Service is removed."""
        with self._loaded() as state:
            gone: Desired = {name: () for name in state.services if name not in desired}
            return self._apply(state, {**gone, **desired})

    def compare(self) -> Iterator[str]:
        """Compare the maps with what was written, a part at each step: the map that differs, or "".

        Anything may be written between two steps; `load()` repairs what differs. MapError.
        """
        with self._loaded() as state:
            parts = compared(state)
        # Whatever reads the maps back compares more than what would be left.
        while self._state is state:
            with self._loaded():
                part = next(parts, None)
            if part is None:
                return
            yield part

    def moving(self, changed: Desired) -> Moving:
        """What `apply()` would move."""
        comes, leaving = False, set[int]()
        with self._loaded() as state:
            for name, frontends in changed.items():
                ports = state.services.get(name, ())
                here = {port.identity for port in ports if port.frontends}
                is_wanted = not all(frontend.withdrawn for frontend in frontends)
                comes |= is_wanted and not here
                leaving |= set() if is_wanted else here
        return Moving(comes, frozenset(leaving))

    def is_left(self, identity: int) -> bool:
        """Whether no frontend uses this Service id any more."""
        with self._loaded() as state:
            port = state.ports.get(identity)
            return not (port and port.frontends)

    def set_node_addresses(self, addresses: Mapping[Address, AddrFlag]) -> None:
        """Set the node's addresses, with LB_ADDR_NODE and LB_ADDR_NODE_PORT.

        MapError(E2BIG) if not all fit; the others are written.
        """
        with self._loaded() as state:
            missing = state.addresses.set_node(addresses)
        if missing:
            raise MapError("lb_addrs", "update", E2BIG)

    def idle(self) -> Set[Referred]:
        """The addresses and ports that only flows may still refer to."""
        with self._loaded() as state:
            return state.addresses.idle()

    def forget(self, unused: Iterable[Referred]) -> None:
        """Forget those of `unused` that nothing has used since `idle()`."""
        with self._loaded() as state:
            state.addresses.forget(unused, self._clock)

    def take_ended_udp(self) -> bool:
        """Whether a UDP backend may have stopped serving since the last call."""
        ended, self._ended_udp = self._ended_udp, False
        return ended

    def failures(self, also: Iterable[ServicePortName]) -> FailureCounts:
        """See read_failures(). MapError."""
        with self._loaded() as state:
            return read_failures(state, also)

    def identities(self, ports: Iterable[ServicePortName]) -> Mapping[int, ServicePortName]:
        """The ids of those that are in the maps. MapError."""
        with self._loaded() as state:
            found = {name: state.port(name) for name in ports}
        return {port.identity: name for name, port in found.items() if port}

    def open_connections(self, wanted: Iterable[ServicePortName]) -> Mapping[ServicePortName, int]:
        """See read_open(). MapError."""
        with self._loaded() as state:
            return read_open(state, wanted)

    def collect(self, quiesced: float | None = None) -> None:
        """Free what was replaced longer ago than the grace time.

        If there is anything to free, waits for a grace period of the kernel, unless one that began
        at `quiesced`, by this sync's clock, has already passed.
        """
        until = self._clock() - self._grace
        if quiesced is not None:
            until = min(until, quiesced)
        with self._loaded() as state:
            due = [pool for pool in state.pools.values() if pool.has_retired(until)]
            if due and quiesced is None:
                self._quiesce()
            for pool in due:
                pool.collect(until)

    def usage(self) -> Mapping[str, Usage]:
        """How full each map is; retired items count as used."""
        with self._loaded() as state:
            names = self._maps["lb_names"].max_entries
            pools = {
                name: Usage(pool.capacity - pool.available, pool.capacity)
                for name, pool in state.pools.items()
            }
            return {
                **pools,
                "lb_limits": Usage(state.limits.used, state.limits.capacity),
                "lb_names": Usage(names - state.names_left, names),
            }

    @contextmanager
    def _loaded(self) -> Iterator[MapState]:
        state = self._state or self._read_back()
        # Until the end is reached, the contents of the maps are unknown.
        self._state = None
        yield state
        self._state = state

    def _apply(self, state: MapState, changed: Desired) -> Refused:
        refused: dict[ServiceName, MapError] = {}
        transaction = Transaction(state)
        claims = _claims(changed)
        while group := list(islice(claims, _GROUP)):
            transaction.add(list(_stage_group(state, group, refused)))
        transaction.finish(self._clock)
        self._ended_udp = self._ended_udp or transaction.ended_udp
        return refused


def _claims(changed: Desired) -> Iterator[tuple[ServiceName, list[Frontend]]]:
    first: dict[FrontendKey, Frontend] = {}
    for name in sorted(changed):
        for frontend in changed[name]:
            if not frontend.withdrawn:
                first.setdefault(frontend.key, frontend)
    for name, frontends in changed.items():
        yield name, [each for each in frontends if each.withdrawn or first[each.key] is each]


def _stage_group(
    state: MapState,
    group: Iterable[tuple[ServiceName, Sequence[Frontend]]],
    refused: dict[ServiceName, MapError],
) -> Iterator[Staged]:
    for name, frontends in group:
        try:
            yield stage(state, name, frontends)
        except MapError as error:
            # Without its traceback, whose frames would keep these maps open after larger ones.
            refused[name] = MapError(error.map_name, error.operation, error.errno)
