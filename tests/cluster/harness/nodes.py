# SPDX-License-Identifier: Apache-2.0
"""A node: kubelet and containerd in their own network namespace, mount namespace and cgroup."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from ebpflb.errors import EbpflbError
from tests.cluster.harness import node_files
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.credentials import Credentials
from tests.cluster.harness.layout import PODS, PODS6, KubeProxy, Layout
from tests.cluster.harness.place import Daemon, Place
from tests.cluster.harness.pod_network import PodNetwork


@dataclass(slots=True)
class ClusterNode(Place):
    """exec and popen run on the node: its network, its mounts, its cgroup."""

    @classmethod
    def boot(cls, layout: Layout, name: str, cni: PodNetwork, *, owned: bool) -> tuple[Self, int]:
        """Create the node's mounts and start containerd. Also returns the process id of the mounts'
        keeper.
        """
        node = cls.of(layout, name, owned=owned)
        node_files.write(layout, name, cni)
        ready = node.folder / "mounted"
        script = node_files.mount_script(layout, name, ready)
        unshare = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        keeper = node.start("mounts", unshare)
        keeper.wait_until(ready.exists, "mounted")
        node.prefix = _prefix(keeper.process.pid)
        node.start("containerd", ["containerd", "--config", node.folder / "containerd.toml"])
        return node, keeper.process.pid

    @classmethod
    def attach(cls, layout: Layout, name: str, keeper: int) -> Self:
        """The node of a cluster that another process has started."""
        node = cls.of(layout, name, owned=False)
        node.prefix = _prefix(keeper)
        return node

    @property
    def home_cgroup(self) -> Path:
        """A leaf cgroup, as cgroup v2 requires once controllers are enabled above it."""
        return self.cgroup / "daemons"

    @property
    def cni_folder(self) -> Path:
        """The folder in which containerd looks for network configurations; it takes the first by
        name.
        """
        return self.folder / "cni"

    @property
    def plugin_folder(self) -> Path:
        """The folder in which containerd looks for CNI plugins."""
        return self.folder / "plugins"

    def wait_for_containerd(self) -> None:
        """Wait until it responds."""
        self.daemon("containerd").wait_until(self._answers, "answering")

    def load_image(self, archive: Path) -> None:
        """Import an OCI or docker archive under the image names in it."""
        ran = self.exec(["ctr", "-n", "k8s.io", "images", "import", archive], timeout=300)
        if ran.returncode:
            raise EbpflbError(f"{self.name}: cannot import {archive}: {ran.stderr.strip()}")

    def start_kubelet(self, credentials: Credentials) -> None:
        """Join the cluster."""
        self.start(
            "kubelet",
            [
                binary("kubelet"),
                f"--config={self.folder / 'kubelet.json'}",
                f"--kubeconfig={credentials.kubeconfig(f'system:node:{self.name}')}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.ip},{self.ip6}",
            ],
        )

    def start_kube_proxy(self, mode: KubeProxy, credentials: Credentials) -> Daemon:
        """Serve Services on this node with kube-proxy."""
        return self.start(
            "kube-proxy",
            [
                binary("kube-proxy"),
                f"--kubeconfig={credentials.kubeconfig('system:kube-proxy')}",
                f"--proxy-mode={mode}",
                f"--cluster-cidr={PODS},{PODS6}",
                f"--hostname-override={self.name}",
                "--conntrack-max-per-core=0",
                "--oom-score-adj=0",
            ],
        )

    def _answers(self) -> bool:
        return self.exec(["ctr", "version"]).returncode == 0


def _prefix(keeper: int) -> tuple[str, ...]:
    return ("nsenter", f"--mount=/proc/{keeper}/ns/mnt", "--")
