# SPDX-License-Identifier: Apache-2.0
"""A node's configuration: its mounts, containerd, the pod network, kubelet."""

import json
from pathlib import Path
from typing import Any

from ebpflb.config.cgroup import cgroup_root
from tests.cluster.harness import images
from tests.cluster.harness.layout import DNS_DOMAIN, DNS_SERVICE, ROOT, Layout
from tests.cluster.harness.pod_network import PLUGINS, PodNetwork

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"

# CAP_SYS_RESOURCE may be missing, and runc fails if it cannot lower oom_score_adj.
_CONTAINERD = """\
version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  disable_apparmor = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{folder}/plugins"
  conf_dir = "{folder}/cni"
"""

# /var/lib, /var/log and /run are the node's own, so that all programs keep their usual paths. The
# folder of all clusters stays visible. Private first: no mount may reach the machine. Shared at
# last, for pods with mountPropagation. Images are in memory: removing their thousands of files took
# 22 to 94 s on a disk that discards freed blocks.
_MOUNTS = """\
set -e
mkdir -p {folder}/lib/{root_name} {folder}/log
mount --bind {root} {folder}/lib/{root_name}
mount --rbind {folder}/lib /var/lib
mount --bind {folder}/log /var/log
mkdir -p /var/lib/containerd
mount -t tmpfs -o mode=711 tmpfs /var/lib/containerd
mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/netns /run/lock
mount -t bpf -o mode=700 bpf /sys/fs/bpf
mount --bind {cgroup} {cgroup_root}
mount --make-rshared /
: > {ready}
exec sleep infinity
"""


def mount_script(layout: Layout, node: str, ready: Path) -> str:
    """The script of the process that keeps a node's mount namespace; creates `ready` once all is
    mounted.
    """
    return _MOUNTS.format(
        folder=layout.folder / node,
        root=ROOT,
        root_name=ROOT.name,
        cgroup=layout.cgroup(node),
        cgroup_root=cgroup_root(),
        ready=ready,
    )


def write(layout: Layout, node: str, cni: PodNetwork) -> None:
    """Write all files of a node."""
    folder = layout.folder / node
    (folder / "cni").mkdir(parents=True)
    (folder / "containerd.toml").write_text(
        _CONTAINERD.format(pause=images.PAUSE.name, folder=folder)
    )
    if cni.conflist:
        network = json.dumps(cni.conflist(layout, node))
        (folder / "cni" / "10-pods.conflist").write_text(network)
    (folder / "plugins").mkdir()
    for plugin in Path(PLUGINS).iterdir():
        (folder / "plugins" / plugin.name).symlink_to(plugin)
    (folder / "resolv.conf").touch()
    (folder / "kubelet.json").write_text(json.dumps(_kubelet(layout, node), indent=1))


def node_object(layout: Layout, node: str) -> dict[str, Any]:
    """The Node with its pod range; kubelet adopts it when it registers."""
    ranges = [layout.pods(node), layout.pods6(node)]
    labels = {"kubernetes.io/hostname": node, "kubernetes.io/os": "linux"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "labels": labels},
        "spec": {"podCIDR": ranges[0], "podCIDRs": ranges},
    }


def _kubelet(layout: Layout, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": layout.cgroup_path(node),
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "failSwapOn": False,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DNS_DOMAIN,
        "resolvConf": str(layout.folder / node / "resolv.conf"),
        "evictionHard": {"memory.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "oomScoreAdj": 0,
        "serializeImagePulls": False,
    }
