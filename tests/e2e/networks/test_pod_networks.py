# SPDX-License-Identifier: Apache-2.0
"""Pods of node1 that have no veth, but a device on top of its uplink: macvlan, ipvlan."""

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from ebpflb.lab import Lab, LabConfig, LabNode, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of, built, lab_name, started
from tests.e2e.harness.questions import PROTOCOLS, Attempt, others, results
from tests.e2e.networks.plugins import LONGEST, UPLINK, VERSIONS, nodad, run
from tests.skips import kernel_lacks

NODE, OTHER_NODE, POD, BESIDE, REMOTE = "node1", "node2", "pod-1-1", "pod-1-2", "pod-2-1"
_SOME = 5
_SILENCE_SECONDS = 1.0
_ON_UPLINK = {"macvlan": "macvlan mode bridge", "ipvlan": "ipvlan mode l2"}
WAYS = pytest.mark.parametrize(
    ("version", "protocol"), [(version, protocol) for version in VERSIONS for protocol in PROTOCOLS]
)


class Site(NamedTuple):
    """Nodes with agents, and a Service for each pod."""

    cluster: Cluster
    specs: dict[str, ServiceSpec]

    def inside(self, source: Member, pod: str, version: int, protocol: str) -> Attempt:
        """To the ClusterIP."""
        spec = self.specs[pod]
        address = self.cluster.lab.cluster_ip(spec.number, version)
        return Attempt(source, address, spec.port, protocol)

    def outside(self, node: str, pod: str, version: int, protocol: str) -> Attempt:
        """From the client to the NodePort of this node."""
        lab = self.cluster.lab
        address = address_of(lab.node(node), version)
        return Attempt(lab.client, address, self.specs[pod].node_port, protocol)


def make(node: LabNode, name: str, pod: Member, kind: str) -> None:
    """A device on the uplink becomes the pod's eth0. Skips if the kernel lacks the device type."""
    command = f"link add link {UPLINK} name {name} type {kind}".split()
    done = node.exec(["ip", *command], check=False)
    if done.returncode:
        kernel_lacks(kind.split()[0], done.stderr.strip())
    run(pod, 4, [f"link del {UPLINK}"])
    run(node, 4, [f"link set {name} netns {pod.namespace.name}"])
    run(pod, 4, [f"link set {name} name {UPLINK}", f"link set {UPLINK} up"])


def lay_on_uplink(lab: Lab, pod: Member, kind: str) -> None:
    """The pod is a neighbour of the nodes and the client; its own node cannot reach it."""
    make(lab.node(pod.node), f"on-{pod.name}", pod, kind)
    for version in VERSIONS:
        ranges = lab.layout.ranges_of(version)
        own = f"{address_of(pod, version)}/{LONGEST[version]}"
        far = lab.node(OTHER_NODE)
        run(
            pod,
            version,
            [
                f"addr add {own} dev {UPLINK}{nodad(version)}",
                f"route add {ranges.underlay()} dev {UPLINK}",
                f"route add {ranges.pods(1)} dev {UPLINK}",
                f"route add {ranges.pods(2)} via {address_of(far, version)}",
                f"route add default via {ranges.gateway()}",
            ],
        )
        for member in (*lab.nodes, lab.client):
            run(member, version, [f"route replace {own} dev {UPLINK}"])


@pytest.fixture(scope="module", params=_ON_UPLINK)
def site(request, tmp_path_factory) -> Iterator[Site]:
    with built(LabConfig(lab_name(), pods=2)) as lab:
        for pod in lab.pods_on(NODE):
            lay_on_uplink(lab, pod, _ON_UPLINK[request.param])
        with started(lab, tmp_path_factory.mktemp("pods")) as cluster:
            specs = {
                name: cluster.serve(cluster.new(), [lab.pod(name)])
                for name in (POD, BESIDE, REMOTE)
            }
            yield Site(cluster, specs)


@WAYS
def test_a_pod_on_the_uplink_reaches_services(site, version, protocol):
    """Through the socket hooks: no device of the node sees its packets."""
    pod = site.cluster.lab.pod(POD)
    for name in (BESIDE, REMOTE):
        attempt = site.inside(pod, name, version, protocol)
        assert others(results([attempt], times=_SOME), name) == {}


@WAYS
def test_others_reach_a_pod_on_the_uplink_by_another_node(site, version, protocol):
    lab = site.cluster.lab
    members = (lab.node(OTHER_NODE), lab.pod(REMOTE), lab.pod("pod-2-2"))
    attempts = [site.inside(member, POD, version, protocol) for member in members]
    attempts.append(site.outside(OTHER_NODE, POD, version, protocol))
    assert others(results(attempts, times=_SOME), POD) == {}


@WAYS
def test_its_own_node_serves_pods_elsewhere(site, version, protocol):
    attempts = [
        site.outside(NODE, REMOTE, version, protocol),
        site.inside(site.cluster.lab.node(NODE), REMOTE, version, protocol),
    ]
    assert others(results(attempts, times=_SOME), REMOTE) == {}


@WAYS
def test_its_own_node_does_not_reach_it_with_or_without_a_service(site, version, protocol):
    """The kernel isolates a device from those on top of it."""
    lab = site.cluster.lab
    node = lab.node(NODE)
    straight = Attempt(node, address_of(lab.pod(POD), version), lab.config.port, protocol)
    services = [
        site.inside(node, POD, version, protocol),
        site.outside(NODE, POD, version, protocol),
    ]
    found = results([straight, *services], seconds=_SILENCE_SECONDS)
    assert not any(POD in seen for seen in found.values())
