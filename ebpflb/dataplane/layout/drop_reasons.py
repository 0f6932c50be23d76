# SPDX-License-Identifier: Apache-2.0
"""What each drop reason means, for users; docs/reference/words.md says what to do."""

from collections.abc import Mapping

from ebpflb.dataplane.layout.enums import DropReason

REASONS: Mapping[DropReason, str] = {
    DropReason.LB_DROP_NO_ENDPOINT: "no usable endpoint",
    DropReason.LB_DROP_NO_LOCAL_ENDPOINT: (
        "only other nodes have a usable endpoint: traffic policy Local"
    ),
    DropReason.LB_DROP_UNKNOWN_PORT: "a ClusterIP without this port",
    DropReason.LB_DROP_SNAT_PORTS: "this node has no free source port towards the backend",
    DropReason.LB_DROP_CONNTRACK_FULL: "the table of flows has no room for another one",
    DropReason.LB_DROP_TTL_EXCEEDED: "the packet's TTL or hop limit ends at this node",
    DropReason.LB_DROP_TOO_BIG: "the packet is too big for the way to the backend",
    DropReason.LB_DROP_NO_ROUTE: "this node has no route to any of the backends",
    DropReason.LB_DROP_NO_SNAT_ADDRESS: "this node has no address to masquerade with",
    DropReason.LB_DROP_REWRITE: "the packet cannot be rewritten",
    DropReason.LB_DROP_SOURCE_RANGE: "the client is outside the source ranges",
    DropReason.LB_DROP_UNUSED_ADDRESS: "inside a ServiceCIDR, but not the address of a Service",
    DropReason.LB_DROP_LOOP: "the endpoint is a Service's address, which leads back here",
    DropReason.LB_DROP_TUNNEL: "it came to the DSR port, but not from a node of the cluster, or "
    "from the middle of a connection that this node does not know",
    DropReason.LB_DROP_TUNNEL_KEY: "it came from a node to the DSR port, but with no key that "
    "this node accepts",
    DropReason.LB_DROP_UNKNOWN_CONNECTION: "of a connection to a Service that this node does not "
    "know",
}
