# SPDX-License-Identifier: Apache-2.0
"""Objects for property tests, which ask for few addresses and have few names, so that they meet."""

from dataclasses import replace

from hypothesis import strategies as st

from ebpflb.model.service import Service, TrafficPolicy
from tests.builders import NODE, endpoint, endpoint_slice, node, service, service_port

POLICIES = st.sampled_from(TrafficPolicy)
PORTS = st.builds(
    service_port,
    st.sampled_from(["10.96.0.1", "10.96.0.2", "fd00::1"]),
    port=st.sampled_from([80, 81]),
    node_port=st.sampled_from([0, 30080]),
    internal_policy=POLICIES,
    external_policy=POLICIES,
)
ENDPOINTS = st.builds(
    endpoint,
    st.sampled_from(["10.1.0.1", "10.1.0.2"]),
    st.sampled_from(["node-a", "node-b"]),
    ready=st.booleans(),
    terminating=st.booleans(),
    zone_hints=st.sampled_from([("zone-1",), ("zone-2",)]),
)
NAMES = st.sampled_from(["shop", "web"])


def some_service(name: str, ports: list[object], created: str) -> Service:
    made = service(name, *ports)  # type: ignore[arg-type]
    return replace(made, ports=made.ports if ports else (), created=created)


AGES = st.sampled_from(["", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"])
# Some want all the same, so that their age alone decides.
SERVICES = st.builds(
    some_service, NAMES, st.just([service_port()]) | st.lists(PORTS, max_size=2), AGES
)
SLICES = st.builds(
    lambda name, of, endpoints: endpoint_slice(name, *endpoints, service=of),
    st.sampled_from(["one", "two"]),
    NAMES,
    st.lists(ENDPOINTS, max_size=2),
)
NODES = st.builds(node, st.sampled_from([NODE, "node-b"]), zone=st.sampled_from(["", "zone-1"]))
