# SPDX-License-Identifier: Apache-2.0
"""Garbage collection of flows: the kernel never evicts from lb_conntrack and lb_ct_stream.

Both directions of a flow are deleted together, once neither has had a packet for the timeout in
lb_settings for its state. The kernel would also evict from the other tables, but late.

A connection that a backend leaves unanswered is recorded as such long before it expires.
"""

import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import compress, count
from operator import lt, or_
from typing import NamedTuple

from ebpflb.dataplane.flows.conntrack import (
    KEY_SIZE,
    PROTOCOL_AT,
    addresses_of,
    destination_port,
    lives,
    reverse,
)
from ebpflb.dataplane.flows.timeouts import tcp_timeout, udp_timeout
from ebpflb.dataplane.kernel.maps import BpfMap, Chunk, MapSet
from ebpflb.dataplane.layout.enums import (
    CtFlag,
    CtState,
    Direction,
    FlowEnd,
    FlowEvent,
    FlowPath,
    FlowSource,
    Hook,
)
from ebpflb.dataplane.layout.structs import (
    FLOW_RECORD_VERSION,
    LbConntrack,
    LbFlowRecord,
    LbSettings,
    LbTraffic,
    LbTuple,
)
from ebpflb.dataplane.services.addresses import Referred
from ebpflb.dataplane.services.mirror import column
from ebpflb.model.address import Protocol

_BYTE = 256
_SECOND = 1_000_000_000
_FOREVER = 1 << 64
_BUDGET = 8192
# TCP repeats a SYN after 1, 3, 7 and 15 seconds (RFC 6298).
_PATIENCE = 16 * _SECOND
_SYN = int(CtState.LB_CT_SYN)
_ORIGINAL, _DIRECTION_AT = int(Direction.LB_DIR_ORIGINAL), LbConntrack.direction.offset
_STATE, _OTHER_STATE = LbConntrack.state.offset, LbConntrack.other_state.offset


@dataclass(frozen=True, slots=True)
class Expired:
    """The result of one step: entries looked at, and entries deleted.

    `unused` is None except at the end of a pass over all flows: then it has those of the addresses
    and ports idle at the start of the pass that no flow refers to.
    """

    seen: int
    deleted: int
    unused: Set[Referred] | None = None


class _FlowEntry(NamedTuple):
    to: bytes
    last_seen: int
    state: int
    value: bytes


class _Oldest(dict[tuple[int, int], int]):
    """The earliest last packet of an entry that is alive, by protocol and state."""

    def __init__(self, now: int, limits: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self._now, self._limits = now, limits

    def __missing__(self, key: tuple[int, int]) -> int:
        protocol, state = key
        oldest = self[key] = max(self._now - self._limits[protocol][state], 0)
        return oldest


def _key(chunk: Chunk, place: int) -> bytes:
    return chunk.keys[place * KEY_SIZE : (place + 1) * KEY_SIZE]


class Expiry:
    """Iterates over all flows, again and again, a few with each `step()`."""

    def __init__(
        self,
        maps: MapSet,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        budget: int = _BUDGET,
        tell: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        """`budget`: about how many entries one step looks at. `clock`: CLOCK_MONOTONIC in ns.

        `tell` receives END records of sampled flows, in the kernel's format, while lb_settings asks
        for them. They are few, so flow_rate does not limit them. A connection without an answer is
        told once, after 16 s; if an answer comes after all, the programs record another END.
        """
        # In this order: a flow that becomes established meanwhile moves to a later one.
        names = ("lb_ct_short", "lb_conntrack", "lb_ct_udp", "lb_ct_stream", "lb_ct_dsr")
        self._tables = tuple(maps[name] for name in names)
        self._settings = maps["lb_settings"]
        self._clock = clock
        self._budget = budget
        self._tell = tell
        self._ended: list[bytes] | None = None
        self._pass: Iterator[tuple[int, int]] | None = None
        self._candidates: set[Referred] = set()
        # Unanswered connections that began in this period have been told; in the next one, the
        # current pass tells them.
        self._told_from = self._told_to = self._tell_to = clock() - _PATIENCE
        self._limits: Sequence[Sequence[int]] = ()
        # The bound for one entry, whatever the other one's state.
        self._earliest: Sequence[Sequence[int]] = ()

    def step(self, idle: Set[Referred] = frozenset()) -> Expired:
        """Look at the next entries and delete those that have expired. MapError.

        `idle` are addresses that only flows may refer to; the first step of a pass takes them.
        """
        try:
            return self._step(idle)
        finally:
            if self._ended and self._tell:
                ended, self._ended = self._ended, []
                self._tell(ended)

    def _step(self, idle: Set[Referred]) -> Expired:
        current, self._pass = self._pass or self._begin(idle), None
        seen = deleted = 0
        for size, gone in current:
            seen += size
            deleted += gone
            if seen >= self._budget:
                self._pass = current
                return Expired(seen, deleted)
        return Expired(seen, deleted, frozenset(self._candidates))

    def _begin(self, idle: Set[Referred]) -> Iterator[tuple[int, int]]:
        value = self._settings.lookup(bytes(4)) or bytes(self._settings.value_size)
        settings = LbSettings.from_buffer_copy(value)
        self._limits = _limits(settings, tcp_timeout)
        self._earliest = _limits(settings, _earliest)
        wants_ends = self._tell and settings.flow_events & 1 << FlowEvent.LB_FLOW_END
        self._ended = [] if wants_ends else None
        self._candidates = set(idle)
        self._tell_to = self._clock() - _PATIENCE
        for table in self._tables:
            for chunk in table.chunks(self._budget):
                yield chunk.size, self._look_at(table, chunk)
        self._told_to = self._tell_to

    def _look_at(self, table: BpfMap, chunk: Chunk) -> int:
        now, size = self._clock(), table.value_size
        states = bytes(map(or_, chunk.values[_STATE::size], chunk.values[_OTHER_STATE::size]))
        protocols = chunk.keys[PROTOCOL_AT::KEY_SIZE]
        # Each step of these runs in C: nearly all entries are alive, and there may be a million.
        oldest = map(_Oldest(now, self._earliest).__getitem__, zip(protocols, states, strict=True))
        last_seen = column(chunk.values, size, LbConntrack.last_seen.offset, "Q")
        due = set(compress(count(), map(lt, last_seen, oldest)))
        gone = {place: self._expire(table, _key(chunk, place), now) for place in due}
        if self._ended is not None:
            created = column(chunk.values, size, LbConntrack.created.offset, "Q")
            for place in compress(count(), map(_SYN.__eq__, states)):
                if place not in due and self._told_to < created[place] <= self._tell_to:
                    self._tell_if_unanswered(table, _key(chunk, place), now)
        if self._candidates:
            self._keep_referred(chunk, size, {at for at in due if gone[at] is not None})
        return sum(filter(None, gone.values()))

    def _keep_referred(self, chunk: Chunk, size: int, gone: Set[int]) -> None:
        """What flows refer to is no candidate any more."""
        directions = chunk.values[_DIRECTION_AT::size]
        for place, (to, *_) in enumerate(lives(chunk.values)):
            if place in gone:
                continue
            key = _key(chunk, place)
            self._candidates.difference_update(addresses_of(key), addresses_of(to))
            if directions[place] == _ORIGINAL:
                self._candidates.discard(destination_port(key))

    def _expire(self, table: BpfMap, key: bytes, now: int) -> int | None:
        """Delete a flow if its current entries say so: how many, or None if it is alive."""
        entry = _read(table, key)
        if entry is None:
            return 0
        other_key = reverse(entry.to)
        other_table, other = self._find(other_key, key)
        both = [entry, other] if other else [entry]
        last_seen = max(each.last_seen for each in both)
        state = _state_of(entry.state, other.state if other else 0)
        if now - last_seen <= self._limits[key[PROTOCOL_AT]][state]:
            return None
        if not table.delete(key):
            return 0
        if self._ended is not None:
            record = end_record(key, entry.value, other.value if other else None, now)
            if record and not (state == _SYN and self._was_told(record)):
                self._ended.append(bytes(record))
        return 1 + (other_table.delete(other_key) if other_table else 0)

    def _tell_if_unanswered(self, table: BpfMap, key: bytes, now: int) -> None:
        """For an entry that has only seen a SYN, in the pass in which its flow gets old enough."""
        entry = _read(table, key)
        if entry is None or self._ended is None:
            return
        _, other = self._find(reverse(entry.to), key)
        record = end_record(key, entry.value, other.value if other else None, now)
        if record and _is_unanswered(record):
            self._ended.append(bytes(record))

    def _was_told(self, record: LbFlowRecord) -> bool:
        return _is_unanswered(record) and self._told_from < record.started <= self._told_to

    def _find(self, key: bytes, other_key: bytes) -> tuple[BpfMap | None, _FlowEntry | None]:
        """The entry for `key`, unless it belongs to a later flow, with another reverse."""
        for table in self._tables:
            entry = _read(table, key)
            if entry and reverse(entry.to) == other_key:
                return table, entry
        return None, None


def _is_unanswered(record: LbFlowRecord) -> bool:
    return bool(record.end == FlowEnd.LB_END_NO_ANSWER and record.proto != Protocol.UDP)


def _read(table: BpfMap, key: bytes) -> _FlowEntry | None:
    value = table.lookup(key)
    if not value:
        return None
    ((to, _, last_seen, state, other_state),) = lives(value)
    return _FlowEntry(to, last_seen, state | other_state, value)


def _state_of(one: int, other: int) -> int:
    """The state of a flow: closed even if two simultaneous FINs did not see each other."""
    closed = CtState.LB_CT_CLOSED if one & other & CtState.LB_CT_OTHER_FIN else 0
    return one | other | closed


def _limits(
    settings: LbSettings, timeout: Callable[[LbSettings, int], int]
) -> Sequence[Sequence[int]]:
    """Nanoseconds by protocol and state. A timeout of 0 is not set yet: never expires."""
    udp = [_nanoseconds(udp_timeout(settings, state)) for state in range(_BYTE)]
    others = [_nanoseconds(timeout(settings, state)) for state in range(_BYTE)]
    return [udp if protocol == Protocol.UDP else others for protocol in range(_BYTE)]


def _earliest(settings: LbSettings, state: int) -> int:
    """For one entry: if the other direction has also seen a FIN, the flow is closed."""
    seconds = tcp_timeout(settings, state)
    if state & CtState.LB_CT_OTHER_FIN:
        seconds = min(seconds, tcp_timeout(settings, CtState.LB_CT_CLOSED), key=_nanoseconds)
    return seconds


def _nanoseconds(seconds: int) -> int:
    return seconds * _SECOND or _FOREVER


def end_record(key: bytes, entry: bytes, other: bytes | None, now: int) -> LbFlowRecord | None:
    """The END record that the programs would have written; `now` is CLOCK_MONOTONIC in ns.

    `entry` and `other` are the two directions, `key` is that of `entry`. None if this is not a
    flow, its END was already recorded, it is not sampled, or only the reply entry is left.
    """
    original, reply = LbConntrack.from_buffer_copy(entry), LbConntrack()
    if other is not None:
        reply = LbConntrack.from_buffer_copy(other)
    if original.direction == Direction.LB_DIR_REPLY:
        original, reply = reply, original
        key = reverse(bytes(reply.to))
    if not _wants_record(original):
        return None
    return _record(LbTuple.from_buffer_copy(key), original, reply, now)


def _wants_record(original: LbConntrack) -> bool:
    return (
        original.hook != Hook.LB_HOOK_RESERVED
        and bool(original.flags & CtFlag.LB_CT_SAMPLED)
        and not original.whole_state & CtState.LB_CT_ENDED
    )


def _record(place: LbTuple, original: LbConntrack, reply: LbConntrack, now: int) -> LbFlowRecord:
    outside = original.hook == Hook.LB_HOOK_HOST_INGRESS
    return LbFlowRecord(
        version=FLOW_RECORD_VERSION,
        event=FlowEvent.LB_FLOW_END,
        path=FlowPath.LB_PATH_TC,
        end=FlowEnd.LB_END_TIMED_OUT if reply.packets else FlowEnd.LB_END_NO_ANSWER,
        proto=place.proto,
        hook=original.hook,
        source=FlowSource.LB_FROM_ELSEWHERE if outside else FlowSource.LB_FROM_THIS_NODE,
        time=now,
        started=original.created,
        client=place.saddr,
        client_port=place.sport,
        frontend=place.daddr,
        frontend_port=place.dport,
        backend_addr=original.to.daddr,
        backend_port=original.to.dport,
        flow_flags=original.flags,
        service=original.service,
        backend=original.backend,
        serial=original.serial,
        desc_flags=original.desc_flags,
        original=LbTraffic(original.packets, original.bytes),
        reply=LbTraffic(reply.packets, reply.bytes),
    )
