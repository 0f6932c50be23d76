# SPDX-License-Identifier: Apache-2.0
"""Everything that a real kube-proxy wrote is removed, in each of its modes."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from ebpflb.dataplane.kube_proxy.removal import remove_kube_proxy
from ebpflb.dataplane.kube_proxy.tools import running_kube_proxies
from ebpflb.lab import namespaces
from tests.bpf.kube_proxy.gateway import kube_proxy_names, ruleset, saved
from tests.cluster.harness import node_files
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.place import Place
from tests.e2e.harness.waiting import wait_until

pytestmark = [pytest.mark.bpf, pytest.mark.cluster]

NODE = "node1"
SERVICES = 20
MODES = {
    "iptables with iptables-legacy": ("iptables", "legacy"),
    "iptables with iptables-nft": ("iptables", "nft"),
    "nftables": ("nftables", "nft"),
}


def objects() -> list[dict[str, object]]:
    """Services of all kinds, with endpoints on this node, on another one, or without."""
    made: list[dict[str, object]] = []
    for number in range(SERVICES):
        name = f"web-{number}"
        spec = {
            "type": ("ClusterIP", "NodePort", "LoadBalancer")[number % 3],
            "ports": [{"name": "http", "port": 80, "targetPort": 8080}],
            "sessionAffinity": "ClientIP" if number % 5 == 0 else "None",
            "externalIPs": ["203.0.113.7"] if number == 6 else [],
        }
        if number % 3:
            spec["externalTrafficPolicy"] = "Local" if number % 2 else "Cluster"
        if number % 3 == 2:
            spec["loadBalancerSourceRanges"] = ["198.51.100.0/24"]
        head = {"name": name, "namespace": "default"}
        made.append({"apiVersion": "v1", "kind": "Service", "metadata": head, "spec": spec})
        endpoints = [
            {"addresses": [f"10.244.{node}.{number + 2}"], "nodeName": f"node{node}"}
            for node in (1, 2)
            if number % 4
        ]
        made.append(
            {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {**head, "labels": {"kubernetes.io/service-name": name}},
                "addressType": "IPv4",
                "endpoints": endpoints,
                "ports": [{"name": "http", "port": 8080}],
            }
        )
    return made


def set_status(control: ControlPlane, name: str, status: dict[str, object]) -> None:
    """Write the status of an object."""
    text = json.dumps({"status": status})
    control.kubectl("patch", name, "--subresource=status", "-p", text)


@pytest.fixture(scope="module")
def control() -> Iterator[ControlPlane]:
    """The API with Services, and a network for one node, which has no kubelet."""
    control = ControlPlane.up(f"takeover-{os.getpid()}", nodes=1)
    try:
        items = [node_files.node_object(control.layout, NODE), *objects()]
        control.kubectl("create", "-f", "-", input=yaml.safe_dump_all(items))
        for number in range(2, SERVICES, 3):
            ingress = {"ingress": [{"ip": "203.0.113.9"}]}
            set_status(control, f"service/web-{number}", {"loadBalancer": ingress})
        # Without it kube-proxy waits half a minute for a kubelet to write it.
        address = {"type": "InternalIP", "address": control.layout.address(NODE)}
        set_status(control, f"node/{NODE}", {"addresses": [address]})
        yield control
    finally:
        control.down()


@pytest.fixture
def node(control) -> Iterator[Place]:
    """The node without any rules, before and afterwards."""
    place = Place.of(control.layout, NODE)
    yield place
    for daemon in place.daemons:
        daemon.stop(signal.SIGKILL)
    place.reap()


def path_with(backend: str, directory: Path) -> str:
    """A PATH on which iptables is that of a backend."""
    directory.mkdir()
    for program in ("iptables", "ip6tables"):
        for part in ("", "-save", "-restore"):
            found = shutil.which(f"{program}-{backend}{part}")
            (directory / f"{program}{part}").symlink_to(str(found))
    return f"{directory}:{os.environ['PATH']}"


def has_written(mode: str, backend: str) -> bool:
    """Whether the last Service is in the rules of the calling thread's namespace."""
    text = ruleset() if mode == "nftables" else saved(backend)[4]
    return f"default/web-{SERVICES - 1}" in text


@pytest.mark.parametrize("name", MODES)
def test_what_kube_proxy_has_written_is_removed(control, node, name, tmp_path):
    mode, backend = MODES[name]
    command = [
        binary("kube-proxy"),
        f"--kubeconfig={control.credentials.kubeconfig('system:kube-proxy')}",
        f"--proxy-mode={mode}",
        f"--hostname-override={NODE}",
        "--cluster-cidr=10.244.0.0/16",
        "--conntrack-max-per-core=0",
        "--oom-score-adj=0",
    ]
    daemon = node.start("kube-proxy", command, PATH=path_with(backend, tmp_path / "bin"))
    with namespaces.entered(node.netns):
        wait_until(lambda: has_written(mode, backend), "rules are written", timeout=60)
        assert running_kube_proxies() == [daemon.process.pid]
        daemon.stop(signal.SIGKILL)
        assert running_kube_proxies() == []
        before = saved(backend)
        removed = remove_kube_proxy(dry_run=False)
        assert removed.lines()
        assert removed.kept == ()
        left = {each: kube_proxy_names(saved(each)) for each in ("legacy", "nft")}
        assert left[backend] == kube_proxy_names(before) & {"KUBE-FIREWALL"}
        assert "kube-proxy" not in ruleset()
        assert all("kubernetes" not in text for text in saved(backend).values())
        assert remove_kube_proxy(dry_run=False).lines() == []
