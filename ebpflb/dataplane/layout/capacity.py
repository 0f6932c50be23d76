# SPDX-License-Identifier: Apache-2.0
"""Every map of bpf/maps.h: what it holds, how many entries fit, what happens when it is full.

Default sizes are small; the agent creates larger maps as the cluster grows. The room for flows
depends on the node (`flow_room`).
"""

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum, auto
from typing import NamedTuple, Self

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.kernel.uapi import MapFlag, MapType
from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.structs import s64, u8, u32, u64
from ebpflb.model.extensions.limits import NO_LIMITS
from ebpflb.model.plan import Backend, Frontend
from ebpflb.model.service import ServicePortName
from ebpflb.model.source_ranges import Prefix

FILTER_SIZE = 65536
UPLINKS = 64
_FIXED = 4096
_FRAGMENTS = 8192
_CLIENTS = 16384
_SUBNETS = 1024
_NODES = 16384
_PATH_MTUS = 4096
_DROPS = 1024
_CONN_PLACES = 8192
_FLOW_RING = 1 << 20
# lb_slots grows to this size for lookup tables, and beyond only for endpoints: 64 MiB, because each
# element of an array takes 8 bytes. The tables leave room for a change (model/admission/tables.py).
MOST_SLOTS = 1 << 23
_HISTOGRAMS = len(enums.FlowPath) * len(enums.HistogramKind)
_HEADROOM = 2
_ENTRIES_PER_FLOW = 2
# Both entries of a flow, with their buckets: docs/performance.md.
FLOW_BYTES = 544
_FEWEST_FLOWS, _MOST_FLOWS = 1 << 16, 1 << 22
# Established flows may use this fraction of the node's memory.
_FLOW_SHARE = 16
_MOST_EVICTING = 1 << 18
_MEMORY_PER_EVICTING = 1 << 17
# Each CPU keeps up to 128 free elements of an LRU for itself (LOCAL_FREE_TARGET of bpf_lru_list.c).
_EVICTING_PER_CPU = 512
_STACK_NAT_PER_CPU, _MOST_STACK_NAT = 256, 1 << 14
_MORE_EVICTING = 4


class WhenFull(Enum):
    """What happens to an entry that does not fit into a map.

    GROWS: the Service that does not fit keeps what it had, an Event and a metric report it, and the
    agent loads a generation of maps with twice the room. For a node address: an error, until then.
    STAYS_IN_CT_SHORT: the flow is translated, but expires after the timeout of opening flows.
    STAYS_IN_CT_UDP: the UDP flow has the timeout of flows that are not streams, and may be evicted.
    EVICTS: the kernel evicts the least recently used entry.
    GOES_TO_LB_CONNECTIONS: the connection is stored there, where the lookup takes a little longer.
    NOT_KEPT: new connections are translated, but until the agent has deleted expired entries, their
    process sees the backend as the peer, they are not counted, or the client has no affinity.
    LEFT_OUT: the feature does not work for this device, pod, node or ServiceCIDR; the agent warns.
    LOST: the flow record is lost, which lb_flow_lost counts; the drop is not counted.
    NEVER: an array with an element for every possible index.
    """

    GROWS = auto()
    STAYS_IN_CT_SHORT = auto()
    STAYS_IN_CT_UDP = auto()
    EVICTS = auto()
    GOES_TO_LB_CONNECTIONS = auto()
    NOT_KEPT = auto()
    LEFT_OUT = auto()
    LOST = auto()
    NEVER = auto()


@dataclass(frozen=True, slots=True)
class Sizes:
    """Numbers of entries; each is LB_MAX_<NAME> of bpf/config.h, whose defaults these are."""

    frontends: int = 512
    descs: int = 1024
    slots: int = 8192
    backends: int = 1024
    addrs: int = 1024
    src_ranges: int = 16384
    limits: int = 512
    names: int = 512
    conntrack: int = 131072
    ct_short: int = 16384
    ct_udp: int = 16384
    ct_stream: int = 65536
    ct_dsr: int = 1024
    stack_nat: int = 4096
    sockets: int = 65536
    affinity: int = 65536

    def defines(self) -> Mapping[str, str]:
        """The -D settings of a compile."""
        return {f"LB_MAX_{name.upper()}": str(size) for name, size in asdict(self).items()}

    def with_flow_tables(self, other: Mapping[str, int]) -> Self:
        """A copy with these sizes for the flow tables; others are ignored."""
        return replace(self, **{name: other[name] for name in FLOW_SIZES & other.keys()})

    def at_least(self, other: Self) -> Self:
        """The larger size of the two for each map."""
        pairs = ((f.name, getattr(self, f.name), getattr(other, f.name)) for f in fields(self))
        return type(self)(**{name: max(mine, theirs) for name, mine, theirs in pairs})

    def grown(self) -> Self:
        """Twice the room in the maps that grow, up to MOST_SLOTS; flow tables keep their size."""
        growing = {spec.size for spec in MAPS.values() if spec.when_full is WhenFull.GROWS}
        sizes = asdict(self)
        larger = {name: 2 * size if name in growing else size for name, size in sizes.items()}
        return type(self)(**larger | {"slots": max(self.slots, min(larger["slots"], MOST_SLOTS))})

    def with_larger(self, tables: Iterable[str], most: int) -> Self:
        """More room in these evicting tables, fields of this class; up to `most` entries."""
        sizes = asdict(self)
        larger = {name: min(_MORE_EVICTING * sizes[name], most) for name in tables}
        return self.at_least(replace(self, **larger))


class _Nothing(ctypes.Structure):
    """A ring buffer has no keys or values."""


_READ, _READ_BY_USE = MapFlag.RDONLY_PROG, MapFlag.RDONLY_PROG | MapFlag.NO_PREALLOC


class MapSpec(NamedTuple):
    """key and value as ctypes; size: the field of Sizes that bounds it, or a fixed number.

    flags: NO_PREALLOC: memory is allocated when an element is inserted, and freed with it.
    RDONLY_PROG: the verifier rejects programs that write it.
    """

    kind: MapType
    key: type
    value: type
    size: str | int
    when_full: WhenFull
    flags: MapFlag = MapFlag(0)

    def shape(self, sizes: Sizes) -> tuple[int, int, int]:
        """Key size, value size (for one CPU) and number of entries."""
        entries = self.size if isinstance(self.size, int) else getattr(sizes, self.size)
        return ctypes.sizeof(self.key), ctypes.sizeof(self.value), entries

    @property
    def is_array(self) -> bool:
        """Whether all elements exist from the start, initially zero."""
        return self.kind in (MapType.ARRAY, MapType.PERCPU_ARRAY)

    @property
    def is_per_cpu(self) -> bool:
        """Whether each CPU has its own value."""
        return self.kind in (MapType.PERCPU_ARRAY, MapType.PERCPU_HASH)

    def fits(self, found: BpfMap) -> bool:
        """Whether its keys and values can be read as those of this version."""
        value = ctypes.sizeof(self.value)
        if self.is_per_cpu:
            value = (value + -value % 8) * found.cpus
        return (found.key_size, found.value_size) == (ctypes.sizeof(self.key), value)


# Linked by indices: shared by the next generation together, or not at all.
SERVICE_MAPS: Mapping[str, MapSpec] = {
    "lb_frontends": MapSpec(
        MapType.HASH, structs.LbFrontendKey, u32, "frontends", WhenFull.GROWS, _READ
    ),
    "lb_current": MapSpec(MapType.ARRAY, u32, u64, "frontends", WhenFull.GROWS, _READ),
    "lb_descs": MapSpec(MapType.ARRAY, u32, structs.LbDesc, "descs", WhenFull.GROWS, _READ),
    "lb_slots": MapSpec(MapType.ARRAY, u32, u32, "slots", WhenFull.GROWS, _READ),
    "lb_backends": MapSpec(
        MapType.ARRAY, u32, structs.LbBackend, "backends", WhenFull.GROWS, _READ
    ),
    "lb_failures": MapSpec(MapType.ARRAY, u32, structs.LbFailures, "backends", WhenFull.GROWS),
    "lb_open": MapSpec(MapType.ARRAY, u32, s64, "backends", WhenFull.GROWS),
    "lb_latencies": MapSpec(MapType.ARRAY, u32, structs.LbLatency, "backends", WhenFull.GROWS),
    "lb_pods_here": MapSpec(
        MapType.HASH, structs.LbPodKey, u32, "backends", WhenFull.GROWS, _READ_BY_USE
    ),
    "lb_addrs": MapSpec(MapType.HASH, structs.LbAddr, u32, "addrs", WhenFull.GROWS, _READ),
    "lb_dest_filter": MapSpec(
        MapType.ARRAY, u32, structs.LbDest, FILTER_SIZE, WhenFull.NEVER, _READ
    ),
    "lb_addr_flags": MapSpec(
        MapType.ARRAY, u32, structs.LbAddrState, "addrs", WhenFull.GROWS, _READ
    ),
    "lb_src_ranges": MapSpec(
        MapType.LPM_TRIE,
        structs.LbSourceRange,
        u8,
        "src_ranges",
        WhenFull.GROWS,
        _READ_BY_USE,
    ),
    "lb_limits": MapSpec(
        MapType.HASH, u32, structs.LbLimit, "limits", WhenFull.GROWS, _READ_BY_USE
    ),
    "lb_names": MapSpec(MapType.HASH, u32, structs.LbName, "names", WhenFull.GROWS, _READ),
    "lb_count_front": MapSpec(
        MapType.PERCPU_ARRAY, u32, structs.LbCounts, "frontends", WhenFull.GROWS
    ),
    "lb_count_back": MapSpec(
        MapType.PERCPU_ARRAY, u32, structs.LbCounts, "backends", WhenFull.GROWS
    ),
}
FLOW_MAPS: Mapping[str, MapSpec] = {
    "lb_conntrack": MapSpec(
        MapType.HASH,
        structs.LbTuple,
        structs.LbConntrack,
        "conntrack",
        WhenFull.STAYS_IN_CT_SHORT,
        MapFlag.NO_PREALLOC,
    ),
    "lb_ct_short": MapSpec(
        MapType.LRU_HASH, structs.LbTuple, structs.LbConntrack, "ct_short", WhenFull.EVICTS
    ),
    "lb_ct_udp": MapSpec(
        MapType.LRU_HASH, structs.LbTuple, structs.LbConntrack, "ct_udp", WhenFull.EVICTS
    ),
    "lb_ct_stream": MapSpec(
        MapType.HASH,
        structs.LbTuple,
        structs.LbConntrack,
        "ct_stream",
        WhenFull.STAYS_IN_CT_UDP,
        MapFlag.NO_PREALLOC,
    ),
    "lb_ct_dsr": MapSpec(
        MapType.LRU_HASH, structs.LbTuple, structs.LbConntrack, "ct_dsr", WhenFull.EVICTS
    ),
    "lb_fragments": MapSpec(
        MapType.LRU_HASH, structs.LbTuple, structs.LbFragment, _FRAGMENTS, WhenFull.EVICTS
    ),
    "lb_stack_nat": MapSpec(
        MapType.LRU_HASH, structs.LbTuple, structs.LbStackNat, "stack_nat", WhenFull.EVICTS
    ),
    "lb_reply_filter": MapSpec(
        MapType.ARRAY, u32, structs.LbReplyEnds, FILTER_SIZE, WhenFull.NEVER
    ),
    "lb_flow_filter": MapSpec(MapType.ARRAY, u32, u32, FILTER_SIZE, WhenFull.NEVER),
    "lb_peer_filter": MapSpec(MapType.ARRAY, u32, u8, FILTER_SIZE, WhenFull.NEVER),
    "lb_sockets": MapSpec(
        MapType.HASH,
        structs.LbSocketKey,
        structs.LbSocket,
        "sockets",
        WhenFull.NOT_KEPT,
        MapFlag.NO_PREALLOC,
    ),
    "lb_affinity": MapSpec(
        MapType.HASH,
        structs.LbClientKey,
        structs.LbAffinity,
        "affinity",
        WhenFull.NOT_KEPT,
        MapFlag.NO_PREALLOC,
    ),
    "lb_clients": MapSpec(
        MapType.LRU_HASH, structs.LbClientKey, structs.LbClient, _CLIENTS, WhenFull.EVICTS
    ),
    "lb_client_uses": MapSpec(
        MapType.LRU_HASH, structs.LbClientKey, structs.LbClientUse, _CLIENTS, WhenFull.EVICTS
    ),
    "lb_conn_places": MapSpec(
        MapType.ARRAY,
        u32,
        structs.LbConnPlace,
        _CONN_PLACES,
        WhenFull.GOES_TO_LB_CONNECTIONS,
    ),
    "lb_connections": MapSpec(
        MapType.HASH,
        u64,
        structs.LbConnection,
        "sockets",
        WhenFull.NOT_KEPT,
        MapFlag.NO_PREALLOC,
    ),
}
# Counters and flow records, not linked to Services by indices.
COUNT_MAPS: Mapping[str, MapSpec] = {
    "lb_count_drop": MapSpec(MapType.PERCPU_HASH, structs.LbDropKey, u64, _DROPS, WhenFull.LOST),
    "lb_flows": MapSpec(MapType.RINGBUF, _Nothing, _Nothing, _FLOW_RING, WhenFull.LOST),
    "lb_count_xdp": MapSpec(MapType.PERCPU_ARRAY, u32, u64, len(enums.XdpResult), WhenFull.NEVER),
    "lb_flow_lost": MapSpec(MapType.PERCPU_ARRAY, u32, u64, len(enums.FlowLost), WhenFull.NEVER),
    "lb_histograms": MapSpec(
        MapType.PERCPU_ARRAY, u32, structs.LbHistogram, _HISTOGRAMS, WhenFull.NEVER
    ),
}
# Rewritten for every generation; until then it knows the pods that the one before knew.
NODE_MAPS: Mapping[str, MapSpec] = {
    "lb_devices": MapSpec(
        MapType.HASH, u32, structs.LbDevice, _FIXED, WhenFull.LEFT_OUT, _READ_BY_USE
    ),
    "lb_uplinks": MapSpec(MapType.ARRAY, u32, structs.LbUplink, UPLINKS, WhenFull.NEVER, _READ),
    "lb_subnets": MapSpec(
        MapType.LPM_TRIE,
        structs.LbSubnet,
        structs.LbAddr,
        _SUBNETS,
        WhenFull.LEFT_OUT,
        _READ_BY_USE,
    ),
    "lb_netns": MapSpec(
        MapType.HASH, u64, structs.LbNetns, _FIXED, WhenFull.LEFT_OUT, _READ_BY_USE
    ),
    "lb_pod_cgroups": MapSpec(MapType.HASH, u64, u8, _FIXED, WhenFull.LEFT_OUT, _READ_BY_USE),
    "lb_pod_nodes": MapSpec(
        MapType.HASH,
        structs.LbAddr,
        structs.LbAddr,
        "backends",
        WhenFull.LEFT_OUT,
        _READ_BY_USE,
    ),
    # Twice the number of frontends, like the descriptors.
    "lb_turns": MapSpec(MapType.ARRAY, u32, u32, "descs", WhenFull.GROWS),
    "lb_nodes": MapSpec(MapType.HASH, structs.LbAddr, u8, _NODES, WhenFull.LEFT_OUT, _READ_BY_USE),
    "lb_settings": MapSpec(MapType.ARRAY, u32, structs.LbSettings, 1, WhenFull.NEVER, _READ),
    "lb_service_nets": MapSpec(
        MapType.ARRAY, u32, structs.LbServiceNets, 1, WhenFull.LEFT_OUT, _READ
    ),
    "lb_tunnel_mtus": MapSpec(
        MapType.LRU_HASH, structs.LbAddr, structs.LbPathMtu, _PATH_MTUS, WhenFull.EVICTS
    ),
    "lb_tunnel_keys": MapSpec(MapType.ARRAY, u32, structs.LbTunnelKeys, 1, WhenFull.NEVER, _READ),
    "lb_meta": MapSpec(MapType.ARRAY, u32, structs.LbMeta, 1, WhenFull.NEVER, _READ),
}
MAPS: Mapping[str, MapSpec] = {**SERVICE_MAPS, **FLOW_MAPS, **COUNT_MAPS, **NODE_MAPS}
# The maps that the loader creates with the required size; the programs do not depend on sizes.
SIZED_MAPS: Mapping[str, MapSpec] = {
    name: spec for name, spec in MAPS.items() if isinstance(spec.size, str)
}
# The fields of Sizes for flow tables.
FLOW_SIZES = frozenset(spec.size for spec in FLOW_MAPS.values() if isinstance(spec.size, str))


def misfits(maps: MapSet) -> list[str]:
    """The maps that this version cannot read: another version's, or put there by somebody else."""
    return sorted(name for name, each in maps.items() if name in MAPS and not MAPS[name].fits(each))


class FlowRoom(NamedTuple):
    """established: capacity of lb_conntrack in flows; evicting: entries of an evicting table.

    Such a table starts with `first` entries, that of direct server return with `dsr`; lb_stack_nat
    always has `stack_nat`.
    """

    established: int
    evicting: int
    first: int = 0
    stack_nat: int = 0
    dsr: int = 0


def flow_room(wanted: int, memory: int, cpus: int, *, has_dsr: bool = False) -> FlowRoom:
    """How many flows fit on a node with this memory, in bytes; `cpus`: possible ones.

    Established flows: `wanted`, limited to a sixteenth of the memory, which is used only by
    existing flows; at least 65,536. An evicting table is allocated in full, about 400 bytes per
    entry in lb_ct_short, lb_ct_udp and lb_ct_dsr: up to 262,144 entries, 8,192 per GiB, and at
    least 65,536. It starts small, and is replaced when it is half full.
    """
    established = max(_FEWEST_FLOWS, min(wanted, memory // _FLOW_SHARE // FLOW_BYTES, _MOST_FLOWS))
    evicting = min(established // 2, memory // _MEMORY_PER_EVICTING, _MOST_EVICTING)
    evicting = max(_FEWEST_FLOWS, evicting)
    first = min(evicting, _power_of_two(_EVICTING_PER_CPU * cpus))
    stack_nat = min(_MOST_STACK_NAT, _power_of_two(_STACK_NAT_PER_CPU * cpus))
    dsr = max(first, Sizes().ct_short) if has_dsr else 0
    return FlowRoom(established, evicting, first, stack_nat, dsr)


def sizes_for(frontends: Iterable[Frontend], flows: FlowRoom | None = None) -> Sizes:
    """Room for twice these frontends: an update takes new slots before it frees the old ones."""
    flows = flows or FlowRoom(0, 0)
    count, slots, backends, names, limited = 0, 0, 0, set(), set()
    ranges: set[tuple[ServicePortName, Prefix]] = set()
    tables: dict[tuple[ServicePortName, tuple[Backend, ...]], int] = {}
    for frontend in frontends:
        count += 1
        names.add(frontend.service)
        limited.update([frontend.service] * (frontend.limits != NO_LIMITS))
        ranges.update((frontend.service, each) for each in frontend.allowed_sources)
        slots += len(frontend.local.backends) + len(frontend.others.backends)
        backends += max(len(frontend.local.backends), len(frontend.others.backends))
        backends += len(frontend.here)
        for choice in (frontend.local, frontend.others):
            if table := choice.table_slots(frontend.table_size):
                tables[frontend.service, choice.backends] = table
    with_tables = min(_room(slots + sum(tables.values())), MOST_SLOTS)
    return Sizes().at_least(
        Sizes(
            frontends=_room(count),
            descs=2 * _room(count),
            slots=max(_room(slots), with_tables),
            backends=_room(backends),
            addrs=_room(count),
            src_ranges=_room(len(ranges)),
            limits=_room(len(limited)),
            names=_room(len(names)),
            conntrack=_ENTRIES_PER_FLOW * flows.established,
            ct_short=flows.first,
            ct_udp=flows.first,
            ct_stream=flows.evicting,
            ct_dsr=flows.dsr,
            stack_nat=flows.stack_nat,
            sockets=flows.evicting,
        )
    )


def _power_of_two(count: int) -> int:
    return 1 << (count - 1).bit_length()


def _room(count: int) -> int:
    return 1 << (_HEADROOM * count).bit_length()
