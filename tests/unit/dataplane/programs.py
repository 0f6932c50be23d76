# SPDX-License-Identifier: Apache-2.0
"""What a program in the kernel finds in the maps, and what it should find for a frontend.

Read with the ctypes mirrors of the C structs, independently of the code under test.
"""

import ctypes
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import xor
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.structs import (
    LbAddrState,
    LbBackend,
    LbDesc,
    LbDest,
    LbFrontendKey,
    LbLimit,
    LbName,
    LbPodKey,
    LbRange,
    LbSourceRange,
    u32,
    u64,
)
from ebpflb.model import plan
from ebpflb.model.address import Address, Protocol
from ebpflb.model.extensions.apportionment import interleaved
from ebpflb.model.extensions.vips import Unserved
from ebpflb.model.maglev import lookup_table
from ebpflb.model.plan import Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import TrafficPolicy
from ebpflb.words.backup import BackupUse
from ebpflb.words.scheduler import Scheduler

LOCAL, TERMINATING, USABLE = 1, 2, 4
SOURCE_RANGES = 4
COUNTS_OPEN = 16
BACKUP = {BackupUse.NONE: 0, BackupUse.SPILL: 512, BackupUse.ONLY: 1024}
DSR = 32
RETRY = 64
LIMITS = 128
TIMED = 2048
ID_BITS = 32
TYPES = {
    FrontendType.CLUSTER_IP: 1,
    FrontendType.NODE_PORT: 2,
    FrontendType.EXTERNAL_IP: 3,
    FrontendType.LOAD_BALANCER: 4,
}
SCHEDULERS = {
    Scheduler.RANDOM: 0,
    Scheduler.ROUND_ROBIN: 1,
    Scheduler.LEAST_CONNECTIONS: 2,
    Scheduler.SOURCE_HASH: 3,
    Scheduler.MAGLEV: 4,
    Scheduler.LOWEST_LATENCY: 5,
}
IF_EMPTY = {IfEmpty.REFUSE: 1, IfEmpty.DROP: 2, IfEmpty.PASS: 3}
UNSERVED = {None: 0, Unserved.REJECT: 256, Unserved.DROP: 4096, Unserved.PASS: 8192}
ECHO = 16384
IN_FILTER = 3
# The flags of an address, by those of a frontend.
OF_ADDRESS = {256: 64, 4096: 32, 8192: 128, ECHO: 256}

# Address, port and protocol.
Place = tuple[bytes, int, int]
# Address and length in bits; None: every client.
Sources = frozenset[tuple[bytes, int]] | None


class Offer(NamedTuple):
    """What a frontend does with a new connection; the order of backends does not matter.

    local, others: with weights.
    """

    service: tuple[str, str, str]
    local: frozenset[tuple[Place, int]]
    local_if_empty: int
    others: frozenset[tuple[Place, int]]
    others_if_empty: int
    type: int
    flags: int
    scheduler: int
    affinity_timeout: int
    sources: Sources


class Found(NamedTuple):
    """An offer, and what lies behind it."""

    offer: Offer
    desc: int
    place: int
    backends: dict[int, LbBackend]


def key_bytes(key: plan.FrontendKey) -> bytes:
    struct = LbFrontendKey(port=key.port, proto=key.protocol)
    ctypes.memmove(ctypes.addressof(struct), key.address, 16)
    return bytes(struct)


def look_up(maps: MapSet, key: plan.FrontendKey) -> Found | None:
    """A program's lookups: hash, word, descriptor, slots, backends."""
    value = maps["lb_frontends"].lookup(key_bytes(key))
    if value is None:
        return None
    index = u32.from_buffer_copy(value).value
    word = number(maps, "lb_current", index)
    desc = LbDesc.from_buffer_copy(element(maps, "lb_descs", word))
    if not word or bytes(desc.frontend) != key_bytes(key):
        return None
    local, others = slots(maps, desc.local), slots(maps, desc.others)
    weights = {each: weights_of(maps, desc, each) for each in (desc.local, desc.others)}
    assert (local, others) == (sorted(set(local)), sorted(set(others))), "cannot be searched"
    backends = {slot: backend(maps, slot) for slot in (*local, *others)}
    name = LbName.from_buffer_copy(maps["lb_names"].lookup(bytes(u32(desc.service))) or b"")
    assert limit_of(maps, desc.service) or not desc.flags & LIMITS, "the limits are missing"
    offer = Offer(
        (name.ns.decode(), name.service.decode(), name.port.decode()),
        _weighed(backends, local, weights[desc.local]),
        desc.local.if_empty,
        _weighed(backends, others, weights[desc.others]),
        desc.others.if_empty,
        desc.type,
        desc.flags,
        desc.scheduler,
        desc.affinity_timeout,
        sources(maps, desc),
    )
    return Found(offer, word, index, backends)


def limit_of(maps: MapSet, service: int) -> LbLimit | None:
    value = maps["lb_limits"].lookup(bytes(u32(service)))
    return LbLimit.from_buffer_copy(value) if value else None


def sources(maps: MapSet, desc: LbDesc) -> Sources:
    """Whom the trie lets in."""
    if not desc.flags & SOURCE_RANGES:
        return None
    keys = (LbSourceRange.from_buffer_copy(key) for key, _ in maps["lb_src_ranges"].items())
    own = (key for key in keys if key.source_ranges == desc.source_ranges)
    return frozenset((bytes(key.addr), key.length - ID_BITS) for key in own)


def element(maps: MapSet, name: str, index: int) -> bytes:
    value = maps[name].lookup(bytes(u32(index)))
    assert value is not None, f"{name}[{index}] is out of range"
    return value


def number(maps: MapSet, name: str, index: int) -> int:
    return int(u64.from_buffer_copy(element(maps, name, index)).value)


def slots(maps: MapSet, place: LbRange) -> list[int]:
    indices = range(place.base, place.base + place.count)
    return [u32.from_buffer_copy(element(maps, "lb_slots", index)).value for index in indices]


def weights_of(maps: MapSet, desc: LbDesc, found: LbRange) -> Sequence[int]:
    """Those of the backends of a range; its table names those that the model says."""
    own = slots(maps, found)
    if not found.table:
        return [1] * len(own)
    is_hashed = desc.scheduler in (SCHEDULERS[Scheduler.SOURCE_HASH], SCHEDULERS[Scheduler.MAGLEV])
    named = slots(maps, LbRange(found.base + found.count, found.table))
    counts = [named.count(each) for each in own]
    weights = [1] * len(own) if is_hashed and max(counts) - min(counts) <= 1 else counts
    ends = zip(own, weights, strict=True)
    offered = sorted(
        plan.Backend(Address(raw), port, True, True, weight=weight)
        for (raw, port, _), weight in (
            (place(backend(maps, each)), weight) for each, weight in ends
        )
    )
    raw = [place(backend(maps, each))[:2] for each in named]
    wanted = (
        lookup_table(offered, found.table)
        if is_hashed
        else interleaved([each.weight for each in offered])
    )
    assert raw == [offered[each][:2] for each in wanted]
    return weights


def _weighed(
    backends: Mapping[int, LbBackend], indices: Iterable[int], weights: Iterable[int]
) -> frozenset[tuple[Place, int]]:
    pairs = zip(indices, weights, strict=True)
    return frozenset((place(backends[index]), weight) for index, weight in pairs)


def backend(maps: MapSet, index: int) -> LbBackend:
    return LbBackend.from_buffer_copy(element(maps, "lb_backends", index))


def place(record: LbBackend) -> Place:
    return bytes(record.addr), record.port, record.proto


def offer_of(frontend: Frontend) -> Offer:
    """What a program should find for a frontend."""
    name = frontend.service
    internal = frontend.internal_policy is TrafficPolicy.LOCAL
    external = frontend.external_policy is TrafficPolicy.LOCAL
    return Offer(
        (name.namespace, name.service, name.port),
        _places(frontend, frontend.local),
        IF_EMPTY[frontend.local.if_empty],
        _places(frontend, frontend.others),
        IF_EMPTY[frontend.others.if_empty],
        TYPES[frontend.type],
        internal
        + 2 * external
        + SOURCE_RANGES * bool(frontend.allowed_sources)
        + COUNTS_OPEN * (frontend.scheduler.counts_open or frontend.counts_open)
        + TIMED * (frontend.scheduler is Scheduler.LOWEST_LATENCY)
        + DSR * frontend.dsr
        + RETRY * frontend.retry
        + LIMITS * any(frontend.limits)
        + BACKUP[frontend.backup]
        + UNSERVED[frontend.unserved]
        + ECHO * _answers_pings(frontend),
        SCHEDULERS[frontend.scheduler],
        frontend.affinity_timeout,
        frozenset((*each,) for each in frontend.allowed_sources) or None,
    )


def _answers_pings(frontend: Frontend) -> bool:
    return frontend.type is not FrontendType.NODE_PORT and bool(frontend.others.backends)


def _places(frontend: Frontend, choice: Choice) -> frozenset[tuple[Place, int]]:
    protocol = int(frontend.service.protocol)
    return frozenset(
        ((bytes(each.address), each.port, protocol), each.weight) for each in choice.backends
    )


def pods_here(maps: MapSet) -> dict[tuple[object, Place], int]:
    """The elements of lb_pods_here, by Service port and pod; each is that of its backend."""
    found: dict[tuple[object, Place], int] = {}
    for raw, value in maps["lb_pods_here"].items():
        key, index = LbPodKey.from_buffer_copy(raw), u32.from_buffer_copy(value).value
        record = backend(maps, index)
        where = bytes(key.addr), key.port, key.proto
        assert (where, key.service) == (place(record), record.service)
        # Of a new Service port the name comes later.
        if name := maps["lb_names"].lookup(bytes(u32(key.service))):
            port = LbName.from_buffer_copy(name)
            found[(port.ns.decode(), port.service.decode(), port.port.decode()), where] = index
    return found


def pods_wanted(frontends: Iterable[Frontend]) -> set[tuple[object, Place]]:
    """What pods_here() should find for these."""
    return {
        (each.service[:3], (bytes(pod.address), pod.port, int(each.service.protocol)))
        for each in frontends
        if each.dsr
        for pod in each.here
    }


def flags_of(
    frontends: Iterable[Frontend], *, also_here: bool = False
) -> dict[tuple[object, Place], int]:
    """The flags that each backend of each Service port should have, USABLE aside.

    `also_here`: not only those that a frontend names.
    """
    flags: dict[tuple[object, Place], int] = {}
    for frontend in frontends:
        name = frontend.service
        here = frontend.here if also_here else ()
        for each in (*frontend.local.backends, *frontend.others.backends, *here):
            where = (name[:3], (bytes(each.address), each.port, int(name.protocol)))
            flags[where] = LOCAL * each.local + TERMINATING * each.terminating
    return flags


def address_flags(maps: MapSet, address: bytes) -> int | None:
    """The flags behind an address; None when it is not in lb_addrs."""
    value = maps["lb_addrs"].lookup(address)
    if value is None:
        return None
    index = u32.from_buffer_copy(value).value
    return int(LbAddrState.from_buffer_copy(element(maps, "lb_addr_flags", index)).flags)


def address_in_place(maps: MapSet, address: bytes) -> tuple[bytes, int] | None:
    """Which address is named in the place of this one, and its flags; None for nobody.

    Whoever is named must be in lb_addrs by the same index, or another one may be given that.
    """
    words = [int.from_bytes(address[at : at + 2], "big") for at in range(0, len(address), 2)]
    place = reduce(xor, words)
    known = int(LbDest.from_buffer_copy(element(maps, "lb_dest_filter", place)).known)
    if not known:
        return None
    state = LbAddrState.from_buffer_copy(element(maps, "lb_addr_flags", known - 1))
    assert maps["lb_addrs"].lookup(bytes(state.addr)) == bytes(u32(known - 1))
    return bytes(state.addr), int(state.flags)


def passes_filter(maps: MapSet, key: FrontendKey) -> bool:
    """Whether lb_dest_filter lets programs see packets to a frontend."""
    is_node_port = not int.from_bytes(key.address[12:], "big")
    index = key.port if is_node_port else int.from_bytes(key.address[14:], "big")
    flags = int(LbDest.from_buffer_copy(element(maps, "lb_dest_filter", index)).flags)
    vips = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_EXTERNAL
    return bool(flags & (AddrFlag.LB_ADDR_NODE_PORT if is_node_port else vips))


def filter_flags(maps: MapSet) -> dict[int, int]:
    """The elements of lb_dest_filter with flags."""
    values = b"".join(chunk.values for chunk in maps["lb_dest_filter"].chunks())
    size = ctypes.sizeof(LbDest)
    elements = (LbDest.from_buffer_copy(values, at) for at in range(0, len(values), size))
    return {index: each.flags for index, each in enumerate(elements) if each.flags}


def filter_wanted(frontends: Iterable[Frontend]) -> dict[int, int]:
    """What lb_dest_filter must have for these frontends, and nothing else."""
    frontends = list(frontends)
    wanted = Counter[int]()
    for address, flags in vip_flags(frontends).items():
        wanted[int.from_bytes(address[14:], "big")] |= flags & IN_FILTER
    for each in frontends:
        if each.type is FrontendType.NODE_PORT:
            wanted[each.key.port] |= AddrFlag.LB_ADDR_NODE_PORT
        elif each.type is not FrontendType.CLUSTER_IP and each.key.protocol is Protocol.UDP:
            wanted[each.key.port] |= AddrFlag.LB_ADDR_EXTERNAL_PORT
    return dict(wanted)


def vip_flags(frontends: Iterable[Frontend]) -> dict[bytes, int]:
    """The flags that the addresses of these frontends should have; NodePorts have none."""
    flags: dict[bytes, int] = {}
    for frontend in frontends:
        if frontend.type is not FrontendType.NODE_PORT:
            flag = 1 if frontend.type is FrontendType.CLUSTER_IP else 2
            own = UNSERVED[frontend.unserved] | ECHO * _answers_pings(frontend)
            flag |= sum(each for given, each in OF_ADDRESS.items() if own & given)
            address = bytes(frontend.key.address)
            flags[address] = flags.get(address, 0) | flag
    return flags
