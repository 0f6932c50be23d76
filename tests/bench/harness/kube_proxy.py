# SPDX-License-Identifier: Apache-2.0
"""The real kube-proxy on the nodes of a lab, which follows the API server of the benches.

Its rules are checked before anything is measured: they must name all Services and their pod.
"""

import re
import subprocess
import time
from collections.abc import Iterator, Set
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import Lab, LabNode, namespaces
from ebpflb.lab.network import UPLINK
from tests.bench.harness.options import BenchError
from tests.cluster.harness.api_client import ApiClient
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.layout import KubeProxy
from tests.cluster.harness.place import Daemon

_SYNC_SECONDS = 300.0
_LOOK_SECONDS = 0.2
_LIST: dict[KubeProxy, list[str]] = {
    "nftables": ["nft", "list", "table", "ip", "kube-proxy"],
    "iptables": ["iptables-save", "--table", "nat"],
}
# An address, or a port alone.
_NUMBER = re.compile(r"\d+(?:\.\d+){3}|\b\d+\b")


def join(lab: Lab, control: ControlPlane, api: ApiClient) -> None:
    """Connect the underlay of a lab with that of the control plane, and create its Nodes."""
    underlay = control.layout.namespace("underlay")
    link = ["ip", "link", "add", "api", "type", "veth", "peer", "lab", "netns", underlay]
    lab.underlay.exec(link)
    lab.underlay.exec(["ip", "link", "set", "api", "master", "br0", "up"])
    with namespaces.entered(namespaces.path_of(underlay)):
        subprocess.run(["ip", "link", "set", "lab", "master", "br0", "up"], check=True)
    for number, node in enumerate(lab.nodes, start=1):
        pods = str(lab.layout.ranges[0].pods(number))
        node.exec(["ip", "route", "add", control.place.ip, "dev", UPLINK])
        back = ["ip", "route", "add", node.ipv4, "dev", UPLINK]
        control.place.exec(back, check=True)
        addresses = [{"type": "InternalIP", "address": node.ipv4}]
        head, status = {"name": node.name}, {"addresses": addresses}
        spec = {"podCIDR": pods, "podCIDRs": [pods]}
        api.post("/api/v1/nodes", {"metadata": head, "spec": spec, "status": status})


@contextmanager
def running(lab: Lab, control: ControlPlane, mode: KubeProxy, expected: Set[str]) -> Iterator[None]:
    """kube-proxy on each node, its rules written; the rules are removed afterwards.

    `expected`: addresses and ports that must be in them. BenchError when they are not in time,
    EbpflbError when a kube-proxy exits.
    """
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ebpflb-bench-")))
        daemons = []
        for node in lab.nodes:
            stack.callback(node.exec, ["nft", "flush", "ruleset"])
            daemons.append(_start(node, control, mode, directory))
            stack.callback(daemons[-1].stop)
        for node, daemon in zip(lab.nodes, daemons, strict=True):
            _wait_written(node, daemon, mode, expected)
        yield
        for daemon in daemons:
            daemon.check()


def absent(rules: str, expected: Set[str]) -> Set[str]:
    """The addresses and ports that these rules do not name."""
    return expected - set(_NUMBER.findall(rules))


def _wait_written(node: LabNode, daemon: Daemon, mode: KubeProxy, expected: Set[str]) -> None:
    deadline = time.monotonic() + _SYNC_SECONDS
    while missing := absent(_rules(node, mode), expected):
        daemon.check()
        if time.monotonic() > deadline:
            count = f"{len(missing)} of {len(expected)}"
            raise BenchError(f"{daemon.name}: its rules lack {count}, as {min(missing)}")
        time.sleep(_LOOK_SECONDS)
    for other in _LIST:
        if other != mode and absent(_rules(node, other), expected) != expected:
            raise BenchError(f"{node.name}: rules of {other} mode beside those of {mode} mode")


def _rules(node: LabNode, mode: KubeProxy) -> str:
    """The rules, "" when there are none."""
    return str(node.exec(_LIST[mode], check=False).stdout)


def _start(node: LabNode, control: ControlPlane, mode: KubeProxy, directory: Path) -> Daemon:
    path = directory / f"{node.name}.log"
    command = [
        str(binary("kube-proxy")),
        f"--kubeconfig={control.credentials.kubeconfig('system:kube-proxy')}",
        f"--proxy-mode={mode}",
        f"--cluster-cidr={','.join(node.cluster_cidr)}",
        f"--hostname-override={node.name}",
        "--conntrack-max-per-core=0",
        "--oom-score-adj=0",
    ]
    with path.open("wb") as log:
        process = node.popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    return Daemon(f"kube-proxy of {node.name}", process, path)
