# SPDX-License-Identifier: Apache-2.0
"""What each map of bpf/maps.h is made of, and which maps belong together."""

import ctypes
from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.layout.structs import u8, u32, u64


class _Nothing(ctypes.Structure):
    """A ring buffer has no keys and values."""


class MapSpec(NamedTuple):
    """key and value as ctypes; size: the field of Sizes that bounds it, or a fixed number."""

    kind: MapType
    key: type
    value: type
    size: str | int

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


FILTER_SIZE = 65536
UPLINKS = 64
_FIXED = 4096
_FRAGMENTS = 8192
_DROPS = 1024
_FLOW_RING = 1 << 20
_HISTOGRAMS = len(enums.FlowPath) * len(enums.HistogramKind)

# Bound together by indices: taken over together, or not at all.
SERVICE_MAPS: Mapping[str, MapSpec] = {
    "lb_frontends": MapSpec(MapType.HASH, structs.FrontendKey, u32, "frontends"),
    "lb_current": MapSpec(MapType.ARRAY, u32, u64, "frontends"),
    "lb_descs": MapSpec(MapType.ARRAY, u32, structs.Desc, "descs"),
    "lb_slots": MapSpec(MapType.ARRAY, u32, u32, "slots"),
    "lb_backends": MapSpec(MapType.ARRAY, u32, structs.Backend, "backends"),
    "lb_addrs": MapSpec(MapType.HASH, structs.Addr, u32, "addrs"),
    "lb_dest_filter": MapSpec(MapType.ARRAY, u32, structs.Dest, FILTER_SIZE),
    "lb_addr_flags": MapSpec(MapType.ARRAY, u32, structs.AddrState, "addrs"),
    "lb_src_ranges": MapSpec(MapType.LPM_TRIE, structs.SourceRange, u8, "src_ranges"),
    "lb_names": MapSpec(MapType.HASH, u32, structs.Name, "names"),
    "lb_count_front": MapSpec(MapType.PERCPU_ARRAY, u32, structs.Counts, "frontends"),
    "lb_count_back": MapSpec(MapType.PERCPU_ARRAY, u32, structs.Counts, "backends"),
}
FLOW_MAPS: Mapping[str, MapSpec] = {
    "lb_conntrack": MapSpec(MapType.HASH, structs.Tuple, structs.Conntrack, "conntrack"),
    "lb_ct_short": MapSpec(MapType.LRU_HASH, structs.Tuple, structs.Conntrack, "ct_short"),
    "lb_fragments": MapSpec(MapType.LRU_HASH, structs.Tuple, structs.Fragment, _FRAGMENTS),
    "lb_reply_filter": MapSpec(MapType.ARRAY, u32, structs.ReplyEnds, FILTER_SIZE),
    "lb_peer_filter": MapSpec(MapType.ARRAY, u32, u8, FILTER_SIZE),
    "lb_sockets": MapSpec(MapType.LRU_HASH, structs.SocketKey, structs.Socket, "sockets"),
    "lb_affinity": MapSpec(MapType.LRU_HASH, structs.AffinityKey, structs.Affinity, "affinity"),
    "lb_connections": MapSpec(MapType.LRU_HASH, u64, structs.Connection, "sockets"),
}
# What was counted, and told, besides what lies beside the Services.
COUNT_MAPS: Mapping[str, MapSpec] = {
    "lb_count_drop": MapSpec(MapType.PERCPU_HASH, structs.DropKey, u64, _DROPS),
    "lb_flows": MapSpec(MapType.RINGBUF, _Nothing, _Nothing, _FLOW_RING),
    "lb_flow_lost": MapSpec(MapType.PERCPU_ARRAY, u32, u64, len(enums.FlowLost)),
    "lb_histograms": MapSpec(MapType.PERCPU_ARRAY, u32, structs.Histogram, _HISTOGRAMS),
}
# Written anew for every generation.
NODE_MAPS: Mapping[str, MapSpec] = {
    "lb_devices": MapSpec(MapType.HASH, u32, structs.Device, _FIXED),
    "lb_uplinks": MapSpec(MapType.ARRAY, u32, structs.Uplink, UPLINKS),
    "lb_netns": MapSpec(MapType.HASH, u64, structs.Netns, _FIXED),
    "lb_settings": MapSpec(MapType.ARRAY, u32, structs.Settings, 1),
    "lb_service_nets": MapSpec(MapType.ARRAY, u32, structs.ServiceNets, 1),
    "lb_meta": MapSpec(MapType.ARRAY, u32, structs.Meta, 1),
}
MAPS: Mapping[str, MapSpec] = {**SERVICE_MAPS, **FLOW_MAPS, **COUNT_MAPS, **NODE_MAPS}
