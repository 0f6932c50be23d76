# SPDX-License-Identifier: Apache-2.0
"""The chart in a real cluster: helm's release serves it, and an uninstall leaves nothing behind."""

import json
import os
import re
from collections.abc import Iterator

import pytest
import yaml

from tests.chart.harness.rendering import EVERYTHING, NAMESPACE, Object, hook_of, render
from tests.cluster.harness import release
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.nodes import ClusterNode
from tests.e2e.harness.waiting import wait_until
from tests.image.build import image_archive

pytestmark = [pytest.mark.bpf, pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

# Of types that this cluster does not know.
_FOREIGN = ("monitoring.coreos.com/", "gateway.networking.k8s.io/")
_ACCOUNT = ("ServiceAccount", "Role", "RoleBinding")
_CLEANING, _WAITING = (
    {f"{kind}/ebpflb-{name}" for kind in _ACCOUNT} for name in ("cleanup", "uninstall")
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes with the image, without a Service proxy."""
    archive = image_archive()
    cluster = Cluster.up(f"chart-{os.getpid()}")
    try:
        cluster.load_image(archive)
        yield cluster
    finally:
        cluster.down()


@pytest.fixture
def installed(cluster: Cluster) -> Iterator[None]:
    """The chart as a release; removed if the test has not done so."""
    release.deploy(cluster, "install", release.values(cluster))
    try:
        yield
    finally:
        if cluster.helm("list", "--short", "--all", f"--namespace={NAMESPACE}"):
            release.undeploy(cluster)


def pins(node: ClusterNode) -> set[str]:
    """The folders of ebpflb's pins on a node."""
    return set(node.exec(["ls", "/sys/fs/bpf/ebpflb"]).stdout.split())


def tainted(cluster: Cluster, node: str) -> list[str]:
    """The keys of a node's taints."""
    path = "jsonpath={.spec.taints[*].key}"
    return cluster.kubectl("get", "node", node, "-o", path).split()


def objects_left(cluster: Cluster) -> list[str]:
    """Objects of the release in the API; pods may still be terminating."""
    kinds = "daemonset,job,service,configmap,serviceaccount,role,rolebinding,clusterrole,"
    kinds += "clusterrolebinding,deployment,secret,apiservice"
    selector = "app.kubernetes.io/instance=ebpflb"
    listed = cluster.kubectl(
        "get", kinds, "--all-namespaces", f"--selector={selector}", "-o", "name"
    )
    return listed.split()


def of_event(values: Object, event: str) -> list[Object]:
    """What is created at an event of helm or Argo CD."""
    return [each for each in render(values) if hook_of(each) == event]


def as_list(objects: list[Object]) -> str:
    """For kubectl."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def test_the_api_server_accepts_every_object(cluster: Cluster) -> None:
    for values in ({}, EVERYTHING, {"securityContext": {"privileged": True}}):
        known: list[Object] = [
            each for each in render(values) if not each["apiVersion"].startswith(_FOREIGN)
        ]
        done = cluster.kubectl("apply", "--dry-run=server", "--filename=-", input=as_list(known))
        assert done.count("(server dry run)") == len(known)


@pytest.mark.usefixtures("installed")
def test_helm_test_reaches_a_service_from_a_pod_and_from_a_node(cluster: Cluster) -> None:
    done = cluster.helm("test", "ebpflb", f"--namespace={NAMESPACE}", "--timeout=120s")
    suites = dict(re.findall(r"TEST SUITE: +(\S+)\n(?:.*\n){2}Phase: +(\w+)", done))
    assert suites == dict.fromkeys(
        ("ebpflb-test", "ebpflb-test-pod", "ebpflb-test-node"), "Succeeded"
    )
    left = cluster.kubectl("get", "daemonset", "--all-namespaces", "-o", "name")
    assert left.split() == ["daemonset.apps/ebpflb"]


@pytest.mark.usefixtures("installed")
def test_an_upgrade_leaves_in_force_what_is_loaded_and_removes_the_startup_taint(
    cluster: Cluster,
) -> None:
    before = {node.name: pins(node) for node in cluster.nodes}
    taints = ("ebpflb.io/agent-not-ready=true:NoSchedule", "other=:PreferNoSchedule")
    cluster.kubectl("taint", "node", "node1", *taints)
    wanted = {"config": {"verbosity": 1}, "startupTaint": {"enabled": True}}
    release.deploy(cluster, "upgrade", release.values(cluster, **wanted))
    wait_until(lambda: tainted(cluster, "node1") == ["other"], "no startup taint", 60)
    cluster.kubectl("taint", "node", "node1", "other-")
    assert {node.name: pins(node) for node in cluster.nodes} == before
    config = cluster.kubectl(f"--namespace={NAMESPACE}", "get", "configmap/ebpflb", "-o", "yaml")
    assert yaml.safe_load(yaml.safe_load(config)["data"]["config.yaml"])["verbosity"] == 1


@pytest.mark.usefixtures("installed")
def test_uninstalling_leaves_nothing_on_any_node_and_nothing_in_the_api(cluster: Cluster) -> None:
    assert all(pins(node) >= {"links"} for node in cluster.nodes)
    release.undeploy(cluster)
    for node in cluster.nodes:
        assert pins(node) == set()
        assert "clsact" not in node.exec(["tc", "qdisc", "show"]).stdout
        assert not release.reaches_the_api(node)
    assert objects_left(cluster) == []


@pytest.mark.usefixtures("installed")
def test_what_was_left_on_purpose_goes_with_the_next_release(cluster: Cluster) -> None:
    release.deploy(cluster, "upgrade", release.values(cluster, uninstall={"mode": "none"}))
    release.undeploy(cluster)
    assert all(pins(node) >= {"links"} for node in cluster.nodes)
    assert all(release.reaches_the_api(node) for node in cluster.nodes)
    release.deploy(cluster, "install", release.values(cluster))
    release.undeploy(cluster)
    assert all(pins(node) == set() for node in cluster.nodes)


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("mode", "event", "left"),
    [
        ("helm", "post-delete", {"Job/ebpflb-cleanup", *_WAITING}),
        (
            "argocd",
            "PostDelete",
            {"DaemonSet/ebpflb-cleanup", "Job/ebpflb-cleanup", *_CLEANING, *_WAITING},
        ),
    ],
)
def test_nodes_are_cleaned_by_objects_that_somebody_else_creates_at_once(
    cluster: Cluster, mode: str, event: str, left: set[str]
) -> None:
    """As with the commands of docs/install.md, and as Argo CD does it, which removes them all."""
    wanted = release.values(cluster, uninstall={"mode": "none", "drainSeconds": 1})
    release.deploy(cluster, "upgrade", wanted)
    release.undeploy(cluster)
    assert all(pins(node) >= {"links"} for node in cluster.nodes)
    wanted["uninstall"]["mode"] = mode
    made = of_event(wanted, event)
    cluster.kubectl("apply", "--filename=-", input=as_list(made))
    space = f"--namespace={NAMESPACE}"
    cluster.control_plane.wait(space, "wait", "--for=condition=complete", "job/ebpflb-cleanup")
    assert all(pins(node) == set() for node in cluster.nodes)
    names = {f"{each['kind']}/{each['metadata']['name']}" for each in made}
    there = {name for name in names if cluster.kubectl(space, "get", name, "--ignore-not-found")}
    assert there == left
    cluster.kubectl(space, "delete", *left)
    assert objects_left(cluster) == []


@pytest.mark.usefixtures("installed")
def test_cleanup_removes_nothing_while_agents_run(cluster: Cluster) -> None:
    text = as_list(of_event(release.values(cluster), "post-delete"))
    before = {node.name: pins(node) for node in cluster.nodes}
    space = f"--namespace={NAMESPACE}"
    cluster.kubectl("apply", "--filename=-", input=text)
    try:
        cluster.kubectl(space, "rollout", "restart", "daemonset/ebpflb")
        cluster.control_plane.wait(space, "rollout", "status", "daemonset/ebpflb")
        assert {node.name: pins(node) for node in cluster.nodes} == before
        assert all(release.reaches_the_api(node) for node in cluster.nodes)
    finally:
        cluster.kubectl("delete", "--filename=-", input=text)
