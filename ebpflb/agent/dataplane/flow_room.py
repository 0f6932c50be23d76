# SPDX-License-Identifier: Apache-2.0
"""How large the flow tables are, and which of them need to grow."""

import os
from collections.abc import Mapping

from ebpflb.config.settings import Settings
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.capacity import FlowRoom, flow_room

# The tables that can be replaced by larger ones, by their field of Sizes.
_GROWING: Mapping[str, str] = {
    "ct_short": "lb_ct_short",
    "ct_udp": "lb_ct_udp",
    "ct_dsr": "lb_ct_dsr",
}


def room_for_flows(settings: Settings) -> FlowRoom:
    """Computed as kube-proxy computes nf_conntrack_max, within the node's memory."""
    scaled = settings.conntrack_max_per_core * (os.cpu_count() or 1)
    wanted = max(scaled, settings.conntrack_min)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    has_dsr = settings.dsr != "off"
    return flow_room(wanted, memory, libbpf.possible_cpus(), has_dsr=has_dsr)


def crowded_tables(maps: MapSet, most: int) -> frozenset[str]:
    """The tables, as fields of Sizes, that are half full and may grow. MapError."""
    return frozenset(
        size
        for size, name in _GROWING.items()
        if maps[name].max_entries < most
        and sum(chunk.size for chunk in maps[name].chunks()) > maps[name].max_entries // 2
    )
