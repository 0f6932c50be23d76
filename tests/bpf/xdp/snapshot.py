# SPDX-License-Identifier: Apache-2.0
"""What a packet leaves behind in the maps."""

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES
from tests.bpf.harness.datapath import Datapath

Snapshot = dict[str, dict[bytes, bytes]]
LINK = 14
# created and last_seen of struct lb_conntrack.
TIMES = slice(40, 56)


def snapshot(datapath: Datapath) -> Snapshot:
    """Every map, except times and XDP's packet counters."""
    found = datapath.snapshot()
    del found["lb_count_xdp"], found["lb_histograms"]
    for name in FLOW_TABLES:
        found[name] = {
            key: value[: TIMES.start] + value[TIMES.stop :] for key, value in found[name].items()
        }
    return found
