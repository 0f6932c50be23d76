# SPDX-License-Identifier: Apache-2.0
"""Every map of bpf/maps.h: what it holds, how many entries fit, what happens when it is full.

Default sizes are small; the agent makes larger maps as the cluster grows.
"""

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import Enum, auto
from typing import NamedTuple, Self

from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.structs import u8, u32, u64
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServicePortName
from ebpflb.model.source_ranges import Prefix

FILTER_SIZE = 65536
UPLINKS = 64
_FIXED = 4096
_FRAGMENTS = 8192
_DROPS = 1024
_FLOW_RING = 1 << 20
_HISTOGRAMS = len(enums.FlowPath) * len(enums.HistogramKind)
_HEADROOM = 2
_ENTRIES_PER_FLOW = 2


class WhenFull(Enum):
    """What happens to an entry for which a map has no room.

    GROWS: the Service that does not fit keeps what it had, an Event and a metric say so, and the
    agent loads a generation of maps with twice the room. A node address: an error, until then.
    STAYS_IN_CT_SHORT: the flow is translated, but forgotten after the timeout of opening flows.
    EVICTS: the kernel evicts the entry that was used least recently.
    LEFT_OUT: a device, a pod or a ServiceCIDR is not served; the agent warns.
    LOST: the flow record is lost, which lb_flow_lost counts; the drop is not counted.
    NEVER: an array with an element for whatever may come.
    """

    GROWS = auto()
    STAYS_IN_CT_SHORT = auto()
    EVICTS = auto()
    LEFT_OUT = auto()
    LOST = auto()
    NEVER = auto()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Entries; each is LB_MAX_<NAME> of bpf/config.h, whose defaults these are."""

    frontends: int = 4096
    descs: int = 8192
    slots: int = 65536
    backends: int = 4096
    addrs: int = 8192
    src_ranges: int = 16384
    names: int = 8192
    conntrack: int = 131072
    ct_short: int = 65536
    sockets: int = 65536
    affinity: int = 65536

    def defines(self) -> Mapping[str, str]:
        """The -D settings of a compile."""
        return {f"LB_MAX_{name.upper()}": str(size) for name, size in asdict(self).items()}

    def at_least(self, other: Self) -> Self:
        """The larger of both, map by map."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return type(self)(**{name: max(mine, theirs) for name, mine, theirs in pairs})

    def grown(self) -> Self:
        """Twice the room in the maps that grow; flow tables stay as they are."""
        growing = {spec.size for spec in MAPS.values() if spec.when_full is WhenFull.GROWS}
        sizes = asdict(self)
        return type(self)(
            **{name: 2 * size if name in growing else size for name, size in sizes.items()}
        )


class _Nothing(ctypes.Structure):
    """A ring buffer has no keys and values."""


class MapSpec(NamedTuple):
    """key and value as ctypes; size: the field of Sizes that bounds it, or a fixed number."""

    kind: MapType
    key: type
    value: type
    size: str | int
    when_full: WhenFull

    def shape(self, sizes: Sizes) -> tuple[int, int, int]:
        """Key size, value size (of one CPU) and number of entries."""
        entries = self.size if isinstance(self.size, int) else getattr(sizes, self.size)
        return ctypes.sizeof(self.key), ctypes.sizeof(self.value), entries

    @property
    def is_array(self) -> bool:
        """Whether all elements exist from the start, and are zero."""
        return self.kind in (MapType.ARRAY, MapType.PERCPU_ARRAY)

    @property
    def is_per_cpu(self) -> bool:
        """Whether each CPU has a value of its own."""
        return self.kind in (MapType.PERCPU_ARRAY, MapType.PERCPU_HASH)


# Bound together by indices: taken over together, or not at all.
SERVICE_MAPS: Mapping[str, MapSpec] = {
    "lb_frontends": MapSpec(MapType.HASH, structs.LbFrontendKey, u32, "frontends", WhenFull.GROWS),
    "lb_current": MapSpec(MapType.ARRAY, u32, u64, "frontends", WhenFull.GROWS),
    "lb_descs": MapSpec(MapType.ARRAY, u32, structs.LbDesc, "descs", WhenFull.GROWS),
    "lb_slots": MapSpec(MapType.ARRAY, u32, u32, "slots", WhenFull.GROWS),
    "lb_backends": MapSpec(MapType.ARRAY, u32, structs.LbBackend, "backends", WhenFull.GROWS),
    "lb_addrs": MapSpec(MapType.HASH, structs.LbAddr, u32, "addrs", WhenFull.GROWS),
    "lb_dest_filter": MapSpec(MapType.ARRAY, u32, structs.LbDest, FILTER_SIZE, WhenFull.NEVER),
    "lb_addr_flags": MapSpec(MapType.ARRAY, u32, structs.LbAddrState, "addrs", WhenFull.GROWS),
    "lb_src_ranges": MapSpec(
        MapType.LPM_TRIE, structs.LbSourceRange, u8, "src_ranges", WhenFull.GROWS
    ),
    "lb_names": MapSpec(MapType.HASH, u32, structs.LbName, "names", WhenFull.GROWS),
    "lb_count_front": MapSpec(
        MapType.PERCPU_ARRAY, u32, structs.LbCounts, "frontends", WhenFull.GROWS
    ),
    "lb_count_back": MapSpec(
        MapType.PERCPU_ARRAY, u32, structs.LbCounts, "backends", WhenFull.GROWS
    ),
}
FLOW_MAPS: Mapping[str, MapSpec] = {
    "lb_conntrack": MapSpec(
        MapType.HASH, structs.LbTuple, structs.LbConntrack, "conntrack", WhenFull.STAYS_IN_CT_SHORT
    ),
    "lb_ct_short": MapSpec(
        MapType.LRU_HASH, structs.LbTuple, structs.LbConntrack, "ct_short", WhenFull.EVICTS
    ),
    "lb_fragments": MapSpec(
        MapType.LRU_HASH, structs.LbTuple, structs.LbFragment, _FRAGMENTS, WhenFull.EVICTS
    ),
    "lb_reply_filter": MapSpec(
        MapType.ARRAY, u32, structs.LbReplyEnds, FILTER_SIZE, WhenFull.NEVER
    ),
    "lb_peer_filter": MapSpec(MapType.ARRAY, u32, u8, FILTER_SIZE, WhenFull.NEVER),
    "lb_sockets": MapSpec(
        MapType.LRU_HASH, structs.LbSocketKey, structs.LbSocket, "sockets", WhenFull.EVICTS
    ),
    "lb_affinity": MapSpec(
        MapType.LRU_HASH, structs.LbAffinityKey, structs.LbAffinity, "affinity", WhenFull.EVICTS
    ),
    "lb_connections": MapSpec(
        MapType.LRU_HASH, u64, structs.LbConnection, "sockets", WhenFull.EVICTS
    ),
}
# Counters and flow records that do not belong to one Service.
COUNT_MAPS: Mapping[str, MapSpec] = {
    "lb_count_drop": MapSpec(MapType.PERCPU_HASH, structs.LbDropKey, u64, _DROPS, WhenFull.LOST),
    "lb_flows": MapSpec(MapType.RINGBUF, _Nothing, _Nothing, _FLOW_RING, WhenFull.LOST),
    "lb_flow_lost": MapSpec(MapType.PERCPU_ARRAY, u32, u64, len(enums.FlowLost), WhenFull.NEVER),
    "lb_histograms": MapSpec(
        MapType.PERCPU_ARRAY, u32, structs.LbHistogram, _HISTOGRAMS, WhenFull.NEVER
    ),
}
# Written anew for every generation.
NODE_MAPS: Mapping[str, MapSpec] = {
    "lb_devices": MapSpec(MapType.HASH, u32, structs.LbDevice, _FIXED, WhenFull.LEFT_OUT),
    "lb_uplinks": MapSpec(MapType.ARRAY, u32, structs.LbUplink, UPLINKS, WhenFull.NEVER),
    "lb_netns": MapSpec(MapType.HASH, u64, structs.LbNetns, _FIXED, WhenFull.LEFT_OUT),
    "lb_settings": MapSpec(MapType.ARRAY, u32, structs.LbSettings, 1, WhenFull.NEVER),
    "lb_service_nets": MapSpec(MapType.ARRAY, u32, structs.LbServiceNets, 1, WhenFull.LEFT_OUT),
    "lb_meta": MapSpec(MapType.ARRAY, u32, structs.LbMeta, 1, WhenFull.NEVER),
}
MAPS: Mapping[str, MapSpec] = {**SERVICE_MAPS, **FLOW_MAPS, **COUNT_MAPS, **NODE_MAPS}


def sizes_for(frontends: Iterable[Frontend], flows: int = 0) -> Sizes:
    """Room for these frontends twice over: an update needs fresh slots before it frees the old.

    flows: how many established ones there must be room for, and half as many of other kinds.
    """
    count, slots, backends, names = 0, 0, 0, set()
    ranges: set[tuple[ServicePortName, Prefix]] = set()
    for frontend in frontends:
        count += 1
        names.add(frontend.service)
        ranges.update((frontend.service, each) for each in frontend.allowed_sources)
        slots += len(frontend.local.backends) + len(frontend.others.backends)
        backends += max(len(frontend.local.backends), len(frontend.others.backends))
    return Sizes().at_least(
        Sizes(
            frontends=_room(count),
            descs=2 * _room(count),
            slots=_room(slots),
            backends=_room(backends),
            addrs=_room(count),
            src_ranges=_room(len(ranges)),
            names=_room(len(names)),
            conntrack=_ENTRIES_PER_FLOW * flows,
            ct_short=flows,
        )
    )


def _room(count: int) -> int:
    return 1 << (_HEADROOM * count).bit_length()
