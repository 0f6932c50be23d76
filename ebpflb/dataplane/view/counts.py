# SPDX-License-Identifier: Apache-2.0
"""Counters summed over all CPUs, and the connections and flows that use each backend now."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from operator import lt, sub
from struct import Struct as Format

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, open_flows
from ebpflb.dataplane.kernel.maps import BpfMap, Chunk, MapSet
from ebpflb.dataplane.layout.enums import CtFlag, Direction, DropReason
from ebpflb.dataplane.layout.structs import (
    LbConnection,
    LbConnPlace,
    LbDropKey,
    LbSocket,
    LbSocketKey,
    packed_format,
)

Sums = tuple[int, ...]

_NUMBER_SIZE = 8
_REASONS = frozenset(DropReason)
# Plain numbers, because an enum member is slower to compare.
_REPLY = int(Direction.LB_DIR_REPLY)
_NEVER = 1 << 64
_NONE = CtFlag(0)
_SOCKET_KEY = packed_format(LbSocketKey, "cookie", "direction")
_SOCKET = packed_format(LbSocket, ("backend", "serial"))
_CONNECTION = packed_format(LbConnection, "started", ("backend", "serial"))
_PLACE = Format(
    f"=Q{LbConnPlace.connection.offset - _NUMBER_SIZE}x{_CONNECTION.format.removeprefix('=')}"
)
Use = tuple[int, int]
"""A backend as flows refer to it: its index in lb_backends, and its serial."""


def sums(counters: BpfMap, length: int | None = None) -> Iterator[Sums]:
    """For each index the fields of its struct, each summed over all CPUs. MapError.

    length: only this many indices. Most have counted nothing, and cost almost nothing.
    """
    left = counters.max_entries if length is None else min(length, counters.max_entries)
    if left <= 0:
        return
    for chunk in counters.chunks():
        yield from _chunk_sums(counters, chunk, min(left, chunk.size))
        left -= chunk.size
        if left <= 0:
            return


def has_restarted(before: Sums, now: Sums) -> bool:
    """Whether counters began at 0 again between two readings: one of them is lower."""
    return any(map(lt, now, before))


def grown(before: Sums, now: Sums) -> Sums:
    """What counters have counted between two readings, also if they began at 0 again."""
    return now if has_restarted(before, now) else tuple(map(sub, now, before))


def _chunk_sums(counters: BpfMap, chunk: Chunk, size: int) -> Iterator[Sums]:
    width, values = counters.value_size, chunk.values
    blank = bytes(width)
    nothing = (0,) * (width // counters.cpus // _NUMBER_SIZE)
    if values.count(0) == len(values):
        yield from (nothing for _ in range(size))
        return
    rows = [values[at : at + width] for at in range(0, size * width, width)]
    added = _added(b"".join([row for row in rows if row != blank]), width, counters.cpus)
    for row in rows:
        yield nothing if row == blank else next(added)


def _added(values: bytes, width: int, cpus: int) -> Iterator[Sums]:
    """Sums column by column, which is faster than row by row."""
    numbers = memoryview(values).cast("Q")
    row = width // _NUMBER_SIZE
    stride = row // cpus
    columns = [numbers[at::row].tolist() for at in range(row)]
    totals = (map(sum, zip(*columns[at::stride], strict=True)) for at in range(stride))
    return zip(*totals, strict=True)


def read_drops(maps: MapSet) -> Mapping[tuple[DropReason, int], int]:
    """Counts by reason and by ifindex or DropPlace. MapError.

    Reasons unknown to this version are left out.
    """
    found: dict[tuple[DropReason, int], int] = {}
    for key, value in maps["lb_count_drop"].items():
        place = LbDropKey.from_buffer_copy(key)
        if place.reason in _REASONS:
            found[DropReason(place.reason), place.ifindex] = sum(memoryview(value).cast("Q"))
    return found


def sum_drops(drops: Mapping[tuple[DropReason, int], int]) -> Mapping[DropReason, int]:
    """Counts by reason, summed over all devices."""
    totals = dict.fromkeys(DropReason, 0)
    for (reason, _), count in drops.items():
        totals[reason] += count
    return totals


@dataclass(frozen=True, slots=True)
class ActiveFlows:
    """flows: how many use a backend. oldest: when the first of them began, CLOCK_MONOTONIC in ns.

    UDP sockets have no start time. entries: by table, including ended flows and replies;
    lb_connections: including those with a place in lb_conn_places.
    """

    flows: Counter[Use] = field(default_factory=Counter)
    oldest: dict[Use, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)


def read_active(maps: MapSet, *, but: CtFlag = _NONE) -> ActiveFlows:
    """Every connected socket, and every flow at tc that has not ended. MapError.

    `but`: flows with this flag are left out.
    A scrape may read hundreds of thousands of them: this takes 0.3 us each.
    """
    pairs: Counter[bytes] = Counter()
    oldest: dict[bytes, int] = {}
    entries = {"lb_sockets": _add_sockets(maps["lb_sockets"], pairs)}
    entries["lb_connections"] = _add_connections(maps["lb_connections"], pairs, oldest)
    entries["lb_connections"] += _add_places(maps["lb_conn_places"], pairs, oldest)
    for name in FLOW_TABLES:
        entries[name] = _add_flows(maps[name], but, pairs, oldest)
    return ActiveFlows(Counter(_by_use(pairs)), _by_use(oldest), entries)


def _by_use(found: Mapping[bytes, int]) -> dict[Use, int]:
    uses = ((memoryview(pair).cast("I"), number) for pair, number in found.items())
    return {(index, serial): number for (index, serial), number in uses}


def _add_sockets(table: BpfMap, pairs: Counter[bytes]) -> int:
    """Connected UDP sockets. Records of unconnected ones may outlive them."""
    size = 0
    unconnected: set[int] = set()
    replies: list[tuple[int, bytes]] = []
    for chunk in table.chunks():
        size += chunk.size
        keys, values = _SOCKET_KEY.iter_unpack(chunk.keys), _SOCKET.iter_unpack(chunk.values)
        for (cookie, direction), (pair,) in zip(keys, values, strict=True):
            if direction == _REPLY:
                replies.append((cookie, pair))
            else:
                unconnected.add(cookie)
    pairs.update([pair for cookie, pair in replies if cookie not in unconnected])
    return size


def _add_connections(table: BpfMap, pairs: Counter[bytes], oldest: dict[bytes, int]) -> int:
    """TCP connections translated at the socket. Until its SYN is sent, one has started at 0."""
    size = 0
    for chunk in table.chunks():
        size += chunk.size
        opened = ((pair, began) for began, pair in _CONNECTION.iter_unpack(chunk.values) if began)
        _add(list(opened), pairs, oldest)
    return size


def _add_places(table: BpfMap, pairs: Counter[bytes], oldest: dict[bytes, int]) -> int:
    """The same for those with a place in lb_conn_places."""
    size = 0
    for chunk in table.chunks():
        if chunk.values.count(0) == len(chunk.values):
            continue
        taken = [each[1:] for each in _PLACE.iter_unpack(chunk.values) if each[0]]
        size += len(taken)
        _add([(pair, began) for began, pair in taken if began], pairs, oldest)
    return size


def _add_flows(table: BpfMap, but: CtFlag, pairs: Counter[bytes], oldest: dict[bytes, int]) -> int:
    size = 0
    for chunk in table.chunks():
        size += chunk.size
        _add(open_flows(chunk.values, but=but), pairs, oldest)
    return size


def _add(
    found: Collection[tuple[bytes, int]], pairs: Counter[bytes], oldest: dict[bytes, int]
) -> None:
    pairs.update([pair for pair, _ in found])
    for pair, began in found:
        if began < oldest.get(pair, _NEVER):
            oldest[pair] = began
