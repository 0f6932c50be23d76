# SPDX-License-Identifier: Apache-2.0
"""Calico: calico-node as processes of each node, and its plugins, as its manifests configure them.

Its BGP daemon is a C program that is no Go module; Felix adds the routes between the nodes, also
those without encapsulation.
"""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal

import yaml

from tests.cluster.harness.binaries import Recipe, built, module_folder
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.layout import PODS, PODS6
from tests.cluster.harness.nodes import ClusterNode
from tests.cluster.harness.pod_network import Object, PodNetwork, conflist
from tests.cni.row import Cni

VERSION = "3.31.0"
_SOURCE = "github.com/projectcalico/calico"
_FLAGS = ("-ldflags", f"-s -w -X {_SOURCE}/pkg/buildinfo.Version=v{VERSION}")
NODE = Recipe(f"{_SOURCE}/node/cmd/calico-node", "calico", _FLAGS)
PLUGIN = Recipe(f"{_SOURCE}/cni-plugin/cmd/calico", "calico", _FLAGS)

Dataplane = Literal["iptables", "nftables"]


def _build() -> None:
    built("calico-node", NODE)
    built("calico", PLUGIN)


def _start(dataplane: Dataplane, vxlan: bool, cluster: Cluster) -> None:
    program = built("calico-node", NODE)
    plugin = built("calico", PLUGIN)
    resources = {"apiVersion": "v1", "kind": "List", "items": list(_resources())}
    cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(resources))
    for node in cluster.nodes:
        settings = _settings(cluster, node, dataplane, vxlan=vxlan)
        variables = [f"{name}={value}" for name, value in settings.items()]
        command: list[str | Path] = ["env", *variables, program]
        node.exec(["mkdir", "-p", "/run/calico"], check=True)
        node.exec([*command, "-startup"], check=True)
        once = ["-allocate-tunnel-addrs", "-allocate-tunnel-addrs-run-once"]
        node.exec([*command, *once], check=True)
        felix = node.start("felix", [program, "-felix"], **settings)
        felix.wait_until(partial(_is_ready, node, program), "ready")
        for name in ("calico", "calico-ipam"):
            (node.plugin_folder / name).symlink_to(plugin)
        (node.cni_folder / "10-calico.conflist").write_text(json.dumps(_conflist(cluster, node)))


def _resources() -> Iterator[Object]:
    """The definitions of what Calico keeps in the API."""
    manifest = module_folder("calico", _SOURCE) / "manifests" / "crds.yaml"
    return (document for document in yaml.safe_load_all(manifest.read_text()) if document)


def _settings(
    cluster: Cluster, node: ClusterNode, dataplane: Dataplane, *, vxlan: bool
) -> dict[str, str]:
    """Those of calico-vxlan.yaml, both families; the defaults elsewhere."""
    mode = "Always" if vxlan else "Never"
    return {
        "KUBECONFIG": str(cluster.kubeconfig),
        "DATASTORE_TYPE": "kubernetes",
        "WAIT_FOR_DATASTORE": "true",
        "NODENAME": node.name,
        "CALICO_K8S_NODE_REF": node.name,
        "CALICO_NETWORKING_BACKEND": "vxlan" if vxlan else "bird",
        "CALICO_DISABLE_FILE_LOGGING": "true",
        "CALICO_IPV4POOL_CIDR": PODS,
        "CALICO_IPV4POOL_IPIP": "Never",
        "CALICO_IPV4POOL_VXLAN": mode,
        "CALICO_IPV6POOL_CIDR": PODS6,
        "CALICO_IPV6POOL_VXLAN": mode,
        "CALICO_IPV6POOL_NAT_OUTGOING": "true",
        "IP": "autodetect",
        "IP6": "autodetect",
        "FELIX_DATASTORETYPE": "kubernetes",
        "FELIX_FELIXHOSTNAME": node.name,
        "FELIX_IPV6SUPPORT": "true",
        "FELIX_DEFAULTENDPOINTTOHOSTACTION": "ACCEPT",
        "FELIX_HEALTHENABLED": "true",
        "FELIX_LOGFILEPATH": "none",
        "FELIX_USAGEREPORTINGENABLED": "false",
        "FELIX_NFTABLESMODE": "Enabled" if dataplane == "nftables" else "Disabled",
        "FELIX_PROGRAMCLUSTERROUTES": "Disabled" if vxlan else "Enabled",
        # Built without C, it cannot look for its eBPF dataplane's programs in order to remove them.
        "FELIX_DebugSkipCTLBCleanup": "true",
    }


def _is_ready(node: ClusterNode, program: Path) -> bool:
    return node.exec([program, "-felix-ready"]).returncode == 0


def _conflist(cluster: Cluster, node: ClusterNode) -> Object:
    """As installed by Calico's manifests; it takes the MTU that calico-node writes."""
    plugin = {
        "type": "calico",
        "log_file_path": "/var/log/calico-cni.log",
        "datastore_type": "kubernetes",
        "nodename": node.name,
        "ipam": {"type": "calico-ipam", "assign_ipv4": "true", "assign_ipv6": "true"},
        "policy": {"type": "k8s"},
        "kubernetes": {"kubeconfig": str(cluster.kubeconfig)},
    }
    return conflist(plugin)


def _row(dataplane: Dataplane, *, vxlan: bool) -> Cni:
    tunnels = ("vxlan.calico", "vxlan-v6.calico") if vxlan else ()
    name = f"calico-{dataplane}-{'vxlan' if vxlan else 'routed'}"
    return Cni(
        PodNetwork(name, build=_build, start=partial(_start, dataplane, vxlan)),
        f"Calico, {dataplane}, {'VXLAN' if vxlan else 'no encapsulation'}",
        f"calico {VERSION} (Go module)",
        pods=("cali*",),
        hosts=("eth0", *tunnels),
    )


ROWS = (
    _row("iptables", vxlan=True),
    _row("nftables", vxlan=True),
    _row("iptables", vxlan=False),
    _row("nftables", vxlan=False),
)
