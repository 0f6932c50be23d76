# SPDX-License-Identifier: Apache-2.0
"""A running cluster moves from the real kube-proxy to ebpflb and back without losing a
connection.
"""

import os
from collections.abc import Iterator

import pytest

from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness import release, workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.layout import KubeProxy
from tests.cluster.harness.place import Place
from tests.cluster.harness.workloads import Load
from tests.e2e.harness.waiting import wait_until
from tests.image.build import image_archive

pytestmark = pytest.mark.slow

SPACE = "move"
# Once per node, as long as kube-proxy serves it.
OWN = {"iptables": ":KUBE-SERVICES ", "nftables": "table ip kube-proxy\n"}
# Its own log, once for each family.
WRITTEN = "kubeproxy_sync_proxy_rules_last_timestamp_seconds{"
# kube-proxy uses the usual ports.
PORTS = {"metrics": {"port": 20249}, "healthz": {"port": 20256}}
DRAINED = {"uninstall": {"drainSeconds": 30}}


@pytest.fixture(params=["iptables", "nftables"])
def mode(request) -> KubeProxy:
    """kube-proxy's mode."""
    found: KubeProxy = request.param
    return found


@pytest.fixture
def cluster(mode: KubeProxy) -> Iterator[Cluster]:
    """Two nodes with kube-proxy, echo servers behind a Service."""
    archive = image_archive()
    made = Cluster.up(f"move-{os.getpid()}", kube_proxy=mode)
    try:
        made.load_image(archive)
        both = {"type": "NodePort", "ipFamilyPolicy": "RequireDualStack"}
        objects = [workloads.deployment("web"), workloads.service("web", **both)]
        workloads.apply(made, SPACE, objects)
        yield made
    finally:
        made.down()


def from_inside(cluster: Cluster) -> list[Load]:
    """New connections from a node to the ClusterIPs, and some that stay open."""
    node = cluster.nodes[0]
    addresses = workloads.field(cluster, SPACE, "service/web", "{.spec.clusterIPs[*]}").split()
    assert len(addresses) == 2
    return [each for address in addresses for each in started(node, url_of(address))]


def from_outside(cluster: Cluster, *keep: bool) -> list[Load]:
    """The same from the client to a NodePort."""
    port = workloads.field(cluster, SPACE, "service/web", "{.spec.ports[0].nodePort}")
    node = cluster.nodes[1]
    urls = [f"{url_of(address)}:{port}" for address in (node.ip, node.ip6)]
    return [each for url in urls for each in started(cluster.client, url, *keep)]


def url_of(address: str) -> str:
    return f"http://[{address}]" if ":" in address else f"http://{address}"


def started(place: Place, url: str, *keep: bool) -> list[Load]:
    wait_until(lambda: workloads.ask(place, url), f"{url} served")
    return [Load.start(place, url, 2, keep=each) for each in keep or (False, True)]


def none_has_failed(running: list[Load]) -> bool:
    assert [load.stop()["failures"] for load in running] == [{}] * len(running)
    return True


def rules(cluster: Cluster) -> str:
    """kube-proxy's rules on the nodes."""
    commands = (["iptables-save", "-t", "nat"], ["nft", "list", "tables"])
    saved = (node.exec(command).stdout for node in cluster.nodes for command in commands)
    return "".join(saved)


def has_written(node: Place) -> bool:
    """Whether kube-proxy serves there again, as docs/moving-from-kube-proxy.md says."""
    page = node.exec(["curl", "--silent", "http://127.0.0.1:10249/metrics"]).stdout
    return page.count(f"\n{WRITTEN}") == 2


def take_over(cluster: Cluster) -> None:
    """Stop kube-proxy and remove its rules with the command in the agents' pods."""
    for node in cluster.nodes:
        node.daemon("kube-proxy").stop()
    space = f"--namespace={NAMESPACE}"
    selector = "--selector=app.kubernetes.io/component=agent"
    pods = cluster.kubectl(space, "get", "pods", selector, "-o", "name").split()
    assert len(pods) == len(cluster.nodes)
    for pod in pods:
        cluster.kubectl(space, "exec", pod, "--", "ebpflb", "takeover", "--wait=60")


def test_there_and_back_under_load(cluster: Cluster, mode: KubeProxy):
    running = [*from_inside(cluster), *from_outside(cluster)]
    release.deploy(cluster, "install", release.values(cluster, **PORTS, **DRAINED))
    assert rules(cluster).count(OWN[mode]) == 2
    take_over(cluster)
    assert OWN[mode] not in rules(cluster)
    assert none_has_failed(running)

    # Open connections from outside break when tc's programs are removed.
    running = [*from_inside(cluster), *from_outside(cluster, False)]
    for node in cluster.nodes:
        node.start_kube_proxy(mode, cluster.control_plane.credentials)
    wait_until(lambda: all(map(has_written, cluster.nodes)), "kube-proxy's rules", 60)
    assert rules(cluster).count(OWN[mode]) == 2
    release.undeploy(cluster)
    assert none_has_failed(running)
