# SPDX-License-Identifier: Apache-2.0
"""Connections through the chart's agents: which pods reply, and no change loses a connection."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness import release, workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.place import Place
from tests.cluster.harness.workloads import Load
from tests.cluster.released.shop import SPACE, by_hand, cluster_ip, node_port
from tests.e2e.harness.newer_layout import change_layout
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.image.build import buildah, image_name, working_container, write_archive

pytestmark = pytest.mark.slow

OUTAGE_SECONDS = 60


def pods_of(answers: list[dict[str, Any]]) -> set[str]:
    return {answer["pod"] for answer in answers}


def loads(cluster: Cluster, service: str) -> list[Load]:
    """New connections from a node to the ClusterIP, and from outside to the other node's
    NodePort.
    """
    first, second = cluster.nodes
    outside = f"http://{second.ip}:{node_port(cluster, service)}"
    return [
        Load.start(first, f"http://{cluster_ip(cluster, service)}", 5),
        Load.start(cluster.client, outside, 5),
    ]


def finish(cluster: Cluster, running: list[Load]) -> list[set[str]]:
    """The pods that answered each load; asserts that no connection has failed."""
    results = [load.stop() for load in running]
    assert [result["failures"] for result in results] == [{} for _ in results], happened(cluster)
    return [set(result["answers"]) for result in results]


def happened(cluster: Cluster) -> str:
    """The API's events about pods and nodes, the oldest first."""
    return cluster.kubectl("get", "events", "--all-namespaces", "--sort-by=.lastTimestamp")


def sees_both(place: Place, url: str) -> bool:
    return len(pods_of(workloads.ask(place, url, 20))) == 2


def pod_sees_both(cluster: Cluster, pod: str) -> bool:
    url = f"http://web.{SPACE}"
    return len(pods_of(workloads.ask_from_pod(cluster, SPACE, pod, url, 20))) == 2


@pytest.mark.parametrize("number", [1, 2])
def test_a_pod_reaches_the_pods_of_both_nodes_by_name(cluster: Cluster, number: int):
    wait_until(lambda: pod_sees_both(cluster, f"asker-node{number}"), "both pods seen")


@pytest.mark.parametrize("number", [1, 2])
def test_a_node_port_answers_from_outside(cluster: Cluster, number: int):
    url = f"http://{cluster.nodes[number - 1].ip}:{node_port(cluster, 'web')}"
    wait_until(lambda: sees_both(cluster.client, url), url)


@pytest.mark.parametrize("number", [1, 2])
def test_udp_is_answered(cluster: Cluster, number: int):
    target, node = f"{cluster_ip(cluster, 'web')}:80", cluster.nodes[number - 1]
    wait_until(lambda: workloads.ask_udp(node, target), "an answer")


def test_a_rolling_update_loses_no_connection(cluster: Cluster):
    objects = [
        workloads.deployment("rolling", replicas=10),
        workloads.service("rolling", type="NodePort"),
    ]
    workloads.apply(cluster, SPACE, objects)
    before = workloads.pods(cluster, SPACE, "rolling")
    running = loads(cluster, "rolling")
    cluster.kubectl("-n", SPACE, "rollout", "restart", "deployment/rolling")
    cluster.control_plane.wait("-n", SPACE, "rollout", "status", "deployment/rolling")
    for answered in finish(cluster, running):
        assert answered & before
        assert answered - before
    cluster.kubectl("-n", SPACE, "delete", "deployment/rolling", "service/rolling")


def test_an_outage_of_the_api_loses_no_connection(cluster: Cluster):
    running = loads(cluster, "web")
    cluster.control_plane.stop_api()
    time.sleep(OUTAGE_SECONDS)
    cluster.control_plane.start_api()
    address = workloads.field(cluster, SPACE, "pod/asker-node1", "{.status.podIP}")
    workloads.apply(cluster, SPACE, by_hand("late", address))
    url = f"http://{cluster_ip(cluster, 'late')}"
    for node in cluster.nodes:
        wait_until(lambda: workloads.ask(node, url), "what was made after it")  # noqa: B023
    finish(cluster, running)


def test_an_upgrade_with_another_value_loses_no_connection(cluster: Cluster):
    running = loads(cluster, "web")
    slowly = {"rollingUpdate": {"maxUnavailable": 1}}
    wanted = release.values(cluster, config={"verbosity": 1}, updateStrategy=slowly)
    release.deploy(cluster, "upgrade", wanted)
    finish(cluster, running)


def test_an_upgrade_with_another_map_layout_loses_no_connection(cluster: Cluster, tmp_path: Path):
    newer = other_layout(tmp_path / "newer.tar")
    cluster.load_image(tmp_path / "newer.tar")
    before = generations(cluster)
    running = loads(cluster, "web")
    wanted = release.values(cluster)
    wanted["image"]["tag"] = newer
    release.deploy(cluster, "upgrade", wanted)
    wait_until(lambda: not before & generations(cluster), "another generation everywhere", 90)
    finish(cluster, running)


def other_layout(archive: Path) -> str:
    """Write a copy of the image with another map layout version, and return its tag."""
    name = f"{image_name()}-newer"
    with working_container() as (container, root):
        (package,) = root.glob("opt/ebpflb/lib/python3*/site-packages/ebpflb")
        change_layout(package, package / "_bpf")
        shutil.rmtree(package / "dataplane/__pycache__")
        buildah("commit", container, name)
    write_archive(name, archive)
    buildah("rmi", name)
    return name.rpartition(":")[2]


def generations(cluster: Cluster) -> set[str]:
    """node/layout-number of all pins."""
    return {
        f"{node.name}/{name}"
        for node in cluster.nodes
        for name in node.exec(["ls", "/sys/fs/bpf/ebpflb"]).stdout.split()
        if name != "links"
    }


def ask_agent(cluster: Cluster, *question: str) -> str:
    """`ebpflb` run in the agent's pod on node1."""
    agent = cluster.kubectl(
        *("-n", NAMESPACE, "get", "pod", "-l", "app.kubernetes.io/component=agent"),
        *("--field-selector", "spec.nodeName=node1", "-o", "name"),
    ).strip()
    return cluster.kubectl("-n", NAMESPACE, "exec", agent, "--", "ebpflb", *question)


def test_a_pod_behind_no_service_is_named_in_flows_and_so_is_what_made_a_pod(cluster: Cluster):
    assert pod_sees_both(cluster, "asker-node1")
    question = ["flows", "--from", f"{SPACE}/asker-node1", "--service", f"{SPACE}/web"]

    def made_by() -> dict[str, str | None]:
        flows = json.loads(ask_agent(cluster, *question, "--last=50", "-o", "json"))
        assert {flow["client"]["pod"] for flow in flows} <= {f"{SPACE}/asker-node1"}
        backends = [flow["backend"] for flow in flows if "backend" in flow]
        return {each["node"]: each.get("workload") for each in backends}

    wait_until_equal(made_by, {"node1": "Deployment/web", "node2": None})


@pytest.mark.parametrize("pod", ["asker-node1", "asker-node2"])
def test_explain_in_an_agents_pod_knows_pods_by_name(cluster: Cluster, pod: str):
    """Pods of its own node, even without the API server."""
    question = [f"{SPACE}/{pod}", f"{SPACE}/web:80", "-o", "json"]
    said = ask_agent(cluster, "explain", *question)
    address = workloads.field(cluster, SPACE, f"pod/{pod}", "{.status.podIP}")
    assert f'"{address}"' in said


def test_an_agent_in_a_pod_gives_up_its_rights(cluster: Cluster):
    assert json.loads(ask_agent(cluster, "status", "-o", "json"))["agent"]["rights_kept"] == {}


def test_every_right_of_the_agent_is_used_and_no_other_is_wanted(cluster: Cluster):
    user = f"system:serviceaccount:{NAMESPACE}:ebpflb"

    def used() -> set[tuple[str, str]]:
        return {
            (event["verb"], event["objectRef"]["resource"])
            for event in cluster.control_plane.audit_events()
            # A request without valid credentials is of nobody.
            if event["user"].get("username") == user and event.get("objectRef", {}).get("resource")
        }

    rules = cluster.kubectl("get", "clusterrole", "ebpflb", "-o", "jsonpath={.rules}")
    granted = {
        (verb, resource)
        for rule in json.loads(rules)
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }
    wait_until_equal(used, granted)
