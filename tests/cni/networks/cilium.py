# SPDX-License-Identifier: Apache-2.0
"""Cilium without its kube-proxy replacement: the agent as a process of each node, and its plugin.

Its operator is left out: the definitions of its resources are applied here, and the pod ranges are
those of the Nodes. The agent compiles its programs on the node with a clang of Debian 13.
"""

import json
import os
from pathlib import Path
from typing import Any

import yaml

from ebpflb.config.cgroup import cgroup_root
from tests.cluster.harness.binaries import Recipe, built, module_folder
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.nodes import ClusterNode
from tests.cluster.harness.pod_network import PodNetwork
from tests.cni.debian_folder import debian_folder
from tests.cni.row import Cni

VERSION = "1.20.2"
_SOURCE = "github.com/cilium/cilium"
_FLAGS = ("-ldflags", f"-s -w -X {_SOURCE}/pkg/version.ciliumVersion={VERSION}")
_MODULE = "cilium"
AGENT = Recipe(f"{_SOURCE}/daemon", _MODULE, _FLAGS)
PLUGIN = Recipe(f"{_SOURCE}/plugins/cilium-cni", _MODULE, _FLAGS)

# Debian's clang runs with the libraries next to it, whatever machine this is.
_CLANG = """\
#!/bin/sh
root={root}
libraries=$root/usr/lib/x86_64-linux-gnu:$root/usr/lib/llvm-19/lib
exec $root/lib64/ld-linux-x86-64.so.2 --library-path $libraries $root/usr/lib/llvm-19/bin/clang "$@"
"""
# Not of the node but of the machine: kernel.timer_migration.
KEEP_MACHINE = (
    "mount --bind /proc/sys/kernel /proc/sys/kernel && mount -o remount,ro,bind /proc/sys/kernel"
)


def _build() -> None:
    agent()
    built("cilium-cni", PLUGIN)
    clang_folder()


def _start(cluster: Cluster) -> None:
    plugin, source, clang = built("cilium-cni", PLUGIN), sources(), clang_folder()
    cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(resources()))
    for node in cluster.nodes:
        node.exec(["sh", "-c", KEEP_MACHINE], check=True)
        (node.plugin_folder / "cilium-cni").symlink_to(plugin)
        settings = _settings(cluster, node, source)
        node.start(
            "cilium",
            [agent(), *(f"--{name}={value}" for name, value in settings.items())],
            K8S_NODE_NAME=node.name,
            CILIUM_K8S_NAMESPACE="kube-system",
            PATH=f"{clang}:{os.environ['PATH']}",
        )


def agent() -> Path:
    """Its program, built if necessary."""
    return built("cilium-agent", AGENT)


def sources() -> Path:
    """The folder of its sources, from which the agent compiles its programs; it contains the chart,
    too.
    """
    return module_folder(_MODULE, _SOURCE)


def resources() -> dict[str, Any]:
    """The definitions of its resources, as one list."""
    items = [
        yaml.safe_load(path.read_text())
        for path in sorted(sources().glob("pkg/k8s/apis/cilium.io/client/crds/v2*/*.yaml"))
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _settings(cluster: Cluster, node: ClusterNode, source: Path) -> dict[str, str]:
    """The settings of its chart with kubeProxyReplacement=false and both families, without optional
    parts.

    Its layer 7 proxy and its health checks are separate programs.
    """
    return {
        "k8s-kubeconfig-path": str(cluster.kubeconfig),
        "lib-dir": str(source),
        "cgroup-root": cgroup_root(),
        "bpf-root": "/sys/fs/bpf",
        "write-cni-conf-when-ready": str(node.cni_folder / "05-cilium.conflist"),
        # hostPort without the replacement.
        "cni-chaining-mode": "portmap",
        "kube-proxy-replacement": "false",
        "bpf-lb-sock": "false",
        "ipam": "kubernetes",
        "routing-mode": "tunnel",
        "tunnel-protocol": "vxlan",
        "enable-ipv4": "true",
        "enable-ipv6": "true",
        "enable-ipv4-masquerade": "true",
        "enable-ipv6-masquerade": "true",
        "enable-l7-proxy": "false",
        "enable-hubble": "false",
        "enable-health-checking": "false",
        "enable-endpoint-health-checking": "false",
    }


def clang_folder() -> Path:
    """A folder with a clang that is new enough."""
    root = debian_folder("trixie", "clang")
    wrapper = root / "wrapper" / "clang"
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(_CLANG.format(root=root))
    wrapper.chmod(0o755)
    return wrapper.parent


ROWS = (
    Cni(
        PodNetwork("cilium", build=_build, start=_start),
        "Cilium, kubeProxyReplacement=false, VXLAN",
        f"cilium {VERSION} (Go module), clang 19 (Debian 13)",
        pods=("lxc*",),
        hosts=("eth0", "cilium_host", "cilium_vxlan"),
    ),
)
