# SPDX-License-Identifier: Apache-2.0
"""The CNI of a cluster: ptp and bridge here, other networks in tests/cni."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.cluster.harness.layout import Layout

if TYPE_CHECKING:
    from tests.cluster.harness.cluster import Cluster

Object = dict[str, Any]

# Debian's folder of plugins. Each node has its own folder with links to them.
PLUGINS = "/usr/lib/cni"


def _nothing(*_: "Cluster") -> None:
    """Nothing to start: the configuration is enough."""


@dataclass(frozen=True, slots=True)
class PodNetwork:
    """A CNI and what it needs.

    conflist: the network configuration of a node, written before containerd starts; None where
    `start` or what it started writes it to ClusterNode.cni_folder.
    build: called before the cluster starts, which must not wait for minutes: builds what `start`
    needs.
    start: called once every kubelet runs, before any node is Ready. It may load images, apply
    objects, start daemons on the nodes and put plugins into ClusterNode.plugin_folder, but must not
    wait for pods that need the network. Daemons and pods end together with the cluster.
    routed: the harness adds the routes to the pod ranges of the other nodes.
    """

    name: str
    conflist: Callable[[Layout, str], Object] | None = None
    build: Callable[[], None] = _nothing
    start: Callable[["Cluster"], None] = _nothing
    routed: bool = False


def host_local(layout: Layout, node: str) -> Object:
    """Addresses from the node's pod ranges, and default routes of both families."""
    return {
        "type": "host-local",
        "ranges": [[{"subnet": item}] for item in (layout.pods(node), layout.pods6(node))],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}],
        "dataDir": "/run/cni",
    }


def conflist(*plugins: Object) -> Object:
    """A network configuration with these plugins, and portmap for hostPorts."""
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [*plugins, portmap]}


def _ptp(layout: Layout, node: str) -> Object:
    return conflist({"type": "ptp", "mtu": 1500, "ipam": host_local(layout, node)})


def _bridge(layout: Layout, node: str) -> Object:
    plugin = {"type": "bridge", "mtu": 1500, "ipam": host_local(layout, node)}
    return conflist(plugin | {"bridge": "cni0", "isGateway": True, "hairpinMode": True})


PTP = PodNetwork("ptp", _ptp, routed=True)
BRIDGE = PodNetwork("bridge", _bridge, routed=True)
