# SPDX-License-Identifier: Apache-2.0
"""flannel: flanneld as a process of each node, with the leases of the API; bridge connects the
pods.

flannel's own CNI plugin only writes the configuration of `bridge` from flanneld's
/run/flannel/subnet.env, and is not available as a module: here the harness writes it.
"""

import ipaddress
import json
from functools import partial

from tests.cluster.harness.binaries import Recipe, built
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.layout import PODS, PODS6
from tests.cluster.harness.nodes import ClusterNode
from tests.cluster.harness.pod_network import Object, PodNetwork, conflist
from tests.cni.networks.debian import NO_POLICY
from tests.cni.row import Cni

VERSION = "0.28.7"
# One of its back ends, which is not used here, contains C.
FLANNEL = Recipe(
    f"github.com/flannel-io/flannel@v{VERSION}",
    flags=("-ldflags", f"-s -w -X github.com/flannel-io/flannel/pkg/version.Version=v{VERSION}"),
    cgo=True,
)

_SUBNET = "/run/flannel/subnet.env"
_NODE_NAME = "NODE_NAME"


def _build() -> None:
    built("flannel", FLANNEL)


def _start(backend: Object, cluster: Cluster) -> None:
    program = built("flannel", FLANNEL)
    settings = {
        "Network": PODS,
        "IPv6Network": PODS6,
        "EnableIPv4": True,
        "EnableIPv6": True,
        "Backend": backend,
    }
    for node in cluster.nodes:
        path = node.folder / "net-conf.json"
        path.write_text(json.dumps(settings))
        daemon = node.start(
            "flanneld",
            [
                program,
                "--kube-subnet-mgr",
                f"--kubeconfig-file={cluster.kubeconfig}",
                f"--net-config-path={path}",
                "--ip-masq",
            ],
            **{_NODE_NAME: node.name},
        )
        daemon.wait_until(partial(_has_lease, node), "in possession of a lease")
        (node.cni_folder / "10-flannel.conflist").write_text(json.dumps(_conflist(node)))


def _has_lease(node: ClusterNode) -> bool:
    return node.exec(["test", "-e", _SUBNET]).returncode == 0


def _conflist(node: ClusterNode) -> Object:
    """flannel's plugin's defaults for its delegate, and hairpinMode of flannel's manifest."""
    lines = node.exec(["cat", _SUBNET], check=True).stdout.splitlines()
    lease = dict(line.split("=", 1) for line in lines)
    routes = [{"dst": PODS}, {"dst": PODS6}]
    subnets = [lease["FLANNEL_SUBNET"], lease["FLANNEL_IPV6_SUBNET"]]
    plugin = {
        "type": "bridge",
        "bridge": "cni0",
        "mtu": int(lease["FLANNEL_MTU"]),
        "isGateway": True,
        "isDefaultGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": _network(each)}] for each in subnets],
            "routes": routes,
            "dataDir": "/run/cni",
        },
    }
    return conflist(plugin)


def _network(lease: str) -> str:
    return str(ipaddress.ip_interface(lease).network)


def _row(name: str, title: str, backend: Object, hosts: tuple[str, ...]) -> Cni:
    return Cni(
        PodNetwork(f"flannel-{name}", build=_build, start=partial(_start, backend)),
        f"flannel, {title}; bridge as flannel's own plugin would call it",
        f"flannel {VERSION} (Go module), bridge of containernetworking-plugins 1.1.1 (Debian 12)",
        pods=("veth*",),
        hosts=hosts,
        lacks=NO_POLICY,
    )


ROWS = (
    _row("vxlan", "VXLAN", {"Type": "vxlan"}, ("eth0", "flannel.1", "flannel-v6.1")),
    _row("host-gw", "host-gw", {"Type": "host-gw"}, ("eth0",)),
)
