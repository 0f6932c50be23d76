# SPDX-License-Identifier: Apache-2.0
"""The CNI project's plugins as packaged by Debian: they only need a configuration on each node."""

from tests.cluster.harness.layout import Layout
from tests.cluster.harness.pod_network import BRIDGE, PTP, Object, PodNetwork, conflist, host_local
from tests.cni.row import Cni

_VERSION = "containernetworking-plugins 1.1.1 (Debian 12)"
NO_POLICY = {"test_network_policy": "it enforces no NetworkPolicy"}


def _firewalled(layout: Layout, node: str) -> Object:
    plugin = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "mtu": 1500,
        "ipam": host_local(layout, node),
    }
    return conflist(plugin, {"type": "firewall", "backend": "iptables"})


ROWS = (
    Cni(PTP, "ptp, host-local, portmap", _VERSION, pods=("veth*",), lacks=NO_POLICY),
    Cni(BRIDGE, "bridge, host-local, portmap", _VERSION, pods=("veth*",), lacks=NO_POLICY),
    Cni(
        PodNetwork("bridge-firewall", _firewalled, routed=True),
        "bridge, host-local, firewall, portmap",
        _VERSION,
        pods=("veth*",),
        lacks=NO_POLICY,
    ),
)
