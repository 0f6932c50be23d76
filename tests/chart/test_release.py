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

# Of a type that this cluster does not know.
_FOREIGN = "monitoring.coreos.com/"


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


def of_removal(values: Object) -> list[Object]:
    """What cleans the nodes."""
    return [each for each in render(values) if hook_of(each) == "post-delete"]


def test_the_api_server_accepts_every_object(cluster: Cluster) -> None:
    for values in ({}, EVERYTHING, {"securityContext": {"privileged": True}}):
        known: list[Object] = [
            each for each in render(values) if not each["apiVersion"].startswith(_FOREIGN)
        ]
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": known})
        done = cluster.kubectl("apply", "--dry-run=server", "--filename=-", input=text)
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
def test_what_was_left_goes_when_the_objects_that_clean_up_are_applied(cluster: Cluster) -> None:
    """The commands of docs/install.md."""
    wanted = release.values(cluster, uninstall={"mode": "none", "drainSeconds": 1})
    release.deploy(cluster, "upgrade", wanted)
    release.undeploy(cluster)
    wanted["uninstall"]["mode"] = "helm"
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": of_removal(wanted)})
    cluster.kubectl("apply", "--filename=-", input=text)
    space = f"--namespace={NAMESPACE}"
    cluster.control_plane.wait(space, "wait", "--for=condition=complete", "job/ebpflb-cleanup")
    assert all(pins(node) == set() for node in cluster.nodes)
    left = [f"{kind}/ebpflb-uninstall" for kind in ("serviceaccount", "role", "rolebinding")]
    cluster.kubectl(space, "delete", "job/ebpflb-cleanup", *left)
    assert objects_left(cluster) == []


@pytest.mark.usefixtures("installed")
def test_cleanup_removes_nothing_while_agents_run(cluster: Cluster) -> None:
    hooks = of_removal(release.values(cluster))
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": hooks})
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
