# SPDX-License-Identifier: Apache-2.0
"""A node for tests of the loop: the real sync over maps in memory, with injected failures."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from errno import EIO

from ebpflb.agent.interface import Desired, EndedSockets, Errors, ExpiryStep, Refused
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.services.tunnels import TunnelMaps
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.errors import EbpflbError, MapError
from ebpflb.model.address import Address, Family, format_address
from ebpflb.model.dsr import Peer, TunnelChange
from ebpflb.model.dsr_probe import PeerQuestion
from ebpflb.model.ejection import FailureCounts
from ebpflb.model.ending.endings import Ending, HeldConnection
from ebpflb.model.pod import PodSockets
from ebpflb.model.service import ServicePortName
from tests.memory_maps import memory_maps

MAP_ERROR = MapError("lb_slots", "update", EIO)


class Clock:
    """A clock that a test advances."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


class MemoryNode:
    """A Dataplane. `calls` says what the loop did; `failures` are raised one by one, by call."""

    def __init__(self, clock: Callable[[], float], sizes: Mapping[str, int] | None = None) -> None:
        self.clock = clock
        self.sizes = dict(sizes or {})
        self.calls: list[str] = []
        self.failures: dict[str, list[EbpflbError | OSError]] = {}
        self.attach_errors: Errors = {}
        self.expired: list[ExpiryStep] = []
        self.ended_udp = False
        self.service_ranges: Sequence[str] | None = None
        self.is_crowded = False
        self.pins_are_lost = False
        self.looks = 0
        self.ended: list[EndedSockets] = []
        self.held: dict[ServicePortName, list[HeldConnection]] = {}
        self.tunnels = TunnelMaps()
        self.asked: list[PeerQuestion] = []
        self.answering: set[Peer] = set()
        self.unsent: dict[Peer, str] = {}
        self.answers: list[tuple[Address, bytes]] = []
        self._load()

    def _load(self) -> None:
        self.maps = memory_maps(self.sizes)
        self.sync = Sync(self.maps, quiesce=lambda: None, clock=self.clock)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if self.failures.get(name):
            raise self.failures[name].pop(0)

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._called("start")
        return self._write(desired, keep_others=keep_others)

    def apply(self, changed: Desired) -> Refused:
        self._called(f"apply {' '.join(sorted(map(str, changed)))}")
        return self.sync.apply(changed)

    def resync(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._called("resync")
        self.sync.load()
        return self._write(desired, keep_others=keep_others)

    def compare(self) -> Iterator[str]:
        return self.sync.compare()

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._called("grow")
        self.sizes = {name: 2 * size for name, size in self.sizes.items()}
        self._load()
        return self._write(desired, keep_others=keep_others)

    def lacks_room_for_flows(self) -> bool:
        return self.is_crowded

    def grow_flows(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._called("grow flows")
        self.is_crowded = False
        return self._write(desired, keep_others=keep_others)

    def _write(self, desired: Desired, *, keep_others: bool) -> Refused:
        return self.sync.apply(desired) if keep_others else self.sync.resync(desired)

    def follow_network(self, *, repair: bool) -> Errors:
        self._called("repair" if repair else "follow")
        return self.attach_errors

    def has_lost_pins(self) -> bool:
        return self.pins_are_lost

    def follow_keys(self) -> None:
        self._called("keys")

    def read_failures(self, also: Iterable[ServicePortName]) -> FailureCounts:
        self._called("failures")
        return self.sync.failures(also)

    def read_open(self, wanted: Iterable[ServicePortName]) -> Mapping[ServicePortName, int]:
        self._called("open")
        return self.sync.open_connections(wanted)

    def set_node_ips(self, node_ips: Mapping[Family, Address]) -> None:
        self._called(f"node {' '.join(map(format_address, node_ips.values()))}")

    def set_service_ranges(self, ranges: Sequence[str]) -> None:
        before, self.service_ranges = self.service_ranges, ranges
        # Every agent says so once, of which most tests need not know.
        if before is not None or ranges:
            self._called(f"ranges {' '.join(ranges)}")

    def set_pods(self, pods: PodSockets) -> None:
        self._called(f"tc only {' '.join(map(format_address, pods.tc_only))}")

    def follow_tunnels(self, change: TunnelChange, *, keep_others: bool, compare: bool) -> None:
        self.tunnels.follow(change, keep_others=keep_others, compare=compare)
        self._called(f"tunnels{' as a whole' * compare}{', others stay' * keep_others}")
        self.tunnels.write(self.maps, Family)

    def ask_peer(self, question: PeerQuestion) -> str:
        self.asked.append(question)
        why = self.unsent.get(question.peer, "")
        if question.peer in self.answering and not why:
            self.answers.append((question.address, question.nonce))
        return why

    def take_answers(self) -> list[tuple[Address, bytes]]:
        answers, self.answers = self.answers, []
        return answers

    def follow_rules(self) -> None:
        self.looks += 1

    def prepare_collect(self, ready: Callable[[], None]) -> None:
        self._called("prepare")
        ready()

    def collect(self) -> None:
        self._called("collect")
        self.sync.collect()

    def expire(self) -> ExpiryStep:
        self._called("expire")
        return self.expired.pop(0) if self.expired else ExpiryStep(0, finished=True)

    def held_connections(
        self, ports: Collection[ServicePortName]
    ) -> Mapping[ServicePortName, Sequence[HeldConnection]]:
        self._called("held")
        return {name: self.held[name] for name in ports & self.held.keys()}

    def end_connections(self, wanted: Collection[Ending]) -> list[Ending]:
        for each in wanted:
            self.held[each.port].remove(each.connection)
        return list(wanted)

    def take_ended_udp(self) -> bool:
        ended, self.ended_udp = self.ended_udp, False
        return ended

    def end_udp_sockets(self) -> EndedSockets:
        self._called("sockets")
        return self.ended.pop(0) if self.ended else EndedSockets({}, pending=False)

    def served(self) -> dict[str, list[str]]:
        """Service name -> the addresses of its backends, of all its frontends in order."""
        found: dict[str, list[str]] = {}
        for each in read_frontends(self.maps):
            backends = [format_address(backend.address) for backend in each.frontend.local.backends]
            found.setdefault(each.frontend.service.service, []).extend(backends)
        return found
