# SPDX-License-Identifier: Apache-2.0
"""A complete cluster: a control plane, nodes, DNS, and an external client."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ebpflb.errors import EbpflbError
from tests.cluster.harness import binaries, images, network, node_files, state
from tests.cluster.harness.control_plane import ControlPlane, run_tool
from tests.cluster.harness.layout import KubeProxy, Layout
from tests.cluster.harness.nodes import ClusterNode
from tests.cluster.harness.place import Daemon, Place
from tests.cluster.harness.pod_network import PTP, PodNetwork

_DNS = Path(__file__).parent / "dns.yaml"
_PATIENCE = 300.0
_READINESS = '{range .items[*]}{.metadata.name} {.status.conditions[?(@.type=="Ready")]}{"\n"}{end}'


@dataclass(slots=True)
class Cluster:
    """client: a machine outside the cluster that has a route to the nodes."""

    control_plane: ControlPlane
    nodes: list[ClusterNode]
    client: Place

    @classmethod
    def up(
        cls,
        name: str,
        nodes: int = 2,
        cni: PodNetwork = PTP,
        kube_proxy: KubeProxy | None = None,
        *,
        owned: bool = True,
    ) -> Self:
        """Start a cluster; all nodes are Ready and CoreDNS runs when it returns, in 20 to 30 s.

        kube_proxy: None for no Service proxy. owned: see ControlPlane.up.
        After any failure, everything is removed.
        """
        for program in binaries.RECIPES:
            binaries.binary(program)
        cni.build()
        control = ControlPlane.up(name, nodes, owned=owned)
        cluster = cls(control, [], Place.of(control.layout, "client", owned=owned))
        try:
            cluster._boot(cni)
            if kube_proxy:
                cluster._start_kube_proxy(kube_proxy)
            cluster._wait_until_ready()
        except BaseException:
            cluster.down()
            raise
        control.state.complete = True
        control.state.save()
        return cluster

    @classmethod
    def attach(cls, name: str) -> Self:
        """A cluster that another process has started; its daemons cannot be restarted from here."""
        known = state.load(name)
        layout = known.layout
        nodes = [ClusterNode.attach(layout, *pair) for pair in known.holders.items()]
        return cls(ControlPlane.attach(known), nodes, Place.of(layout, "client", owned=False))

    @property
    def kubeconfig(self) -> Path:
        """With admin rights."""
        return self.control_plane.kubeconfig

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """kubectl's output. EbpflbError with its error message if it fails."""
        return self.control_plane.kubectl(*arguments, input=input)

    def helm(self, *arguments: str) -> str:
        """helm's output. EbpflbError with its error message if it fails."""
        return run_tool("helm", arguments, self.kubeconfig)

    def load_image(self, archive: Path) -> None:
        """Import an image on every node."""
        for node in self.nodes:
            node.load_image(archive)

    def down(self) -> None:
        """Remove everything."""
        self.control_plane.down()
        for place in (self.client, *self.nodes):
            place.reap()

    def _boot(self, cni: PodNetwork) -> None:
        control = self.control_plane
        layout = control.layout
        if cni.routed:
            network.route_pods(layout)
        for name in layout.node_names():
            node, keeper = ClusterNode.boot(layout, name, cni, owned=control.place.owned)
            self.nodes.append(node)
            control.state.holders[name] = keeper
            control.state.save()
        self._apply_nodes_and_dns(layout)
        archives = [
            image.write(layout.folder / "images")
            for image in (images.PAUSE, images.ECHO, images.COREDNS)
        ]
        for node in self.nodes:
            node.wait_for_containerd()
            for archive in archives:
                node.load_image(archive)
            node.start_kubelet(control.credentials)
        cni.start(self)

    def _apply_nodes_and_dns(self, layout: Layout) -> None:
        items = [node_files.node_object(layout, node.name) for node in self.nodes]
        listed = {"apiVersion": "v1", "kind": "List", "items": items}
        self.kubectl("create", "-f", "-", input=json.dumps(listed))
        manifest = _DNS.read_text().replace("API_ADDRESS", layout.address("control"))
        self.kubectl("create", "-f", "-", input=manifest)

    def _start_kube_proxy(self, mode: KubeProxy) -> None:
        for node in self.nodes:
            node.start_kube_proxy(mode, self.control_plane.credentials)

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + _PATIENCE
        while not all(map(self._is_ready, self.nodes)):
            for daemon in self._daemons():
                daemon.check()
            if time.monotonic() > deadline:
                found = self.kubectl("get", "nodes", "-o", f"jsonpath={_READINESS}")
                raise EbpflbError(f"nodes are not Ready within {_PATIENCE:.0f} s:\n{found}")
            time.sleep(0.5)
        coredns = ("rollout", "status", "deployment/coredns")
        self.control_plane.wait("--namespace=kube-system", *coredns)

    def _is_ready(self, node: ClusterNode) -> bool:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        return self.kubectl("get", "node", node.name, "-o", f"jsonpath={path}") == "True"

    def _daemons(self) -> list[Daemon]:
        return [item for place in (self.control_plane.place, *self.nodes) for item in place.daemons]
