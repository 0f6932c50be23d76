# SPDX-License-Identifier: Apache-2.0
"""A reading that has something of everything."""

from math import inf

from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendType
from ebpflb.observe.metrics.service_readings import (
    BackendReading,
    Distribution,
    Endpoints,
    PortLabels,
    PortReading,
    Reading,
)

LABELS = PortLabels("default", "web", "http", "TCP")
COUNTED = Counts(1, 2, 3, 4, 5, 6, 7, 8, 9)
READING = Reading(
    entries={"lb_slots": (1, 8)},
    dropped={("no_route", "eth0"): 5},
    records={"refused": 3},
    lost={"ring_full": 1, "rate_limit": 2},
    flows={("ebpflb_flow_rtt_seconds", "tc"): Distribution([(0.5, 1), (inf, 3)], 4.5)},
    ports=[
        PortReading(
            LABELS,
            {FrontendType.CLUSTER_IP: COUNTED},
            Endpoints(1, 2, 3),
            active=4,
            cross_node=5,
            cross_zone=6,
            cross_zone_bytes=10,
            oldest_seconds=7.5,
            imbalance=1.25,
            unusable=8,
            on_removed=9,
            full=11,
        ),
    ],
    backends=[BackendReading(LABELS, "10.1.0.1:80", "node-b", "z1", COUNTED, 4)],
)
