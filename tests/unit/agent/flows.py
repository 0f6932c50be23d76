# SPDX-License-Identifier: Apache-2.0
"""Flow records as the kernel writes them, for tests of their readers."""

import time
from typing import Any

from ebpflb.dataplane.layout.enums import FlowEnd, FlowEvent, FlowPath, FlowSource
from ebpflb.dataplane.layout.structs import FLOW_RECORD_VERSION, LbAddr, LbFlowRecord, LbTraffic
from ebpflb.model.address import Address, Protocol
from ebpflb.model.changes import Changes
from ebpflb.model.pod import NamedPod
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.flows.flow_log import PodOf
from ebpflb.observe.pod_names import PodNames
from ebpflb.source.interface import SourceEvent
from tests.builders import address

SERVICE = 7


def record(event: FlowEvent = FlowEvent.LB_FLOW_END, **fields: Any) -> bytes:
    """A TCP connection of a pod through a ClusterIP, unless `fields` say otherwise.

    Addresses are texts. It is from now, and took 1.5 s.
    """
    now = time.monotonic_ns()
    found = {
        "version": FLOW_RECORD_VERSION,
        "event": event,
        "path": FlowPath.LB_PATH_SOCKET,
        "end": FlowEnd.LB_END_CLOSED if event == FlowEvent.LB_FLOW_END else 0,
        "proto": Protocol.TCP,
        "source": FlowSource.LB_FROM_THIS_NODE,
        "time": now,
        "started": now - 1_500_000_000,
        "client": "10.1.0.9",
        "frontend": "10.96.0.10",
        "backend_addr": "10.1.0.1",
        "client_port": 40000,
        "frontend_port": 80,
        "backend_port": 8080,
        "service": SERVICE,
        "original": LbTraffic(5, 100),
        "reply": LbTraffic(4, 2000),
        "rtt": 250,
        **fields,
    }
    for name in ("client", "frontend", "backend_addr"):
        if isinstance(found[name], str):
            found[name] = LbAddr.from_buffer_copy(address(found[name]))
    return bytes(LbFlowRecord(**found))


def refused(**fields: Any) -> bytes:
    """Nobody was there for it."""
    none = {"backend_addr": LbAddr(), "backend_port": 0, "rtt": 0}
    return record(FlowEvent.LB_FLOW_REFUSED, **{**none, "reason": 1, **fields})


def pod_of(changes: Changes) -> PodOf:
    """This node's pods and those of all slices, as they are when it is called."""

    def pod(address: Address) -> NamedPod:
        locations = EndpointLocations(changes.node.name)
        names = PodNames(locations)
        pieces = tuple(piece for _, slices in changes.all_slices() for piece in slices)
        locations.note(SourceEvent(pieces, (), {}, initial=True))
        names.note(SourceEvent(tuple(changes.node_pods()), (), {}, initial=True))
        return names.at(address)

    return pod
