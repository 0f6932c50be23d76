# SPDX-License-Identifier: Apache-2.0
"""The chart on two real nodes without kube-proxy: what works, and goes on through all changes."""

import gzip
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness import release, workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.place import Place
from tests.cluster.harness.workloads import Load
from tests.cluster.plugin import Plugin, user_with
from tests.e2e.harness.newer_layout import change_layout
from tests.e2e.harness.waiting import wait_until
from tests.image.build import IMAGE, buildah, image_archive, working_container

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPACE = "released"
OUTAGE_SECONDS = 60
CONVERGED_SECONDS = 2
ENOUGH = 20_000


@pytest.fixture(scope="module")
def cluster(no_leftovers: None) -> Iterator[Cluster]:
    """Two nodes with the chart, echo servers, and a pod to ask from on each node."""
    archive = image_archive()
    made = Cluster.up(f"released-{os.getpid()}")
    try:
        made.load_image(archive)
        release.deploy(made, "install", release.values(made))
        objects = [
            workloads.deployment("web"),
            workloads.service("web", type="NodePort"),
            *(workloads.asker(f"asker-{node.name}", node.name) for node in made.nodes),
        ]
        workloads.apply(made, SPACE, objects)
        yield made
    finally:
        made.down()


def pods_of(answers: list[dict[str, Any]]) -> set[str]:
    return {answer["pod"] for answer in answers}


def cluster_ip(cluster: Cluster, service: str) -> str:
    return workloads.field(cluster, SPACE, f"service/{service}", "{.spec.clusterIP}")


def node_port(cluster: Cluster, service: str) -> str:
    return workloads.field(cluster, SPACE, f"service/{service}", "{.spec.ports[0].nodePort}")


def loads(cluster: Cluster, service: str, seconds: float) -> list[Load]:
    """New connections from a node to the ClusterIP, and from outside to the other's NodePort."""
    first, second = cluster.nodes
    outside = f"http://{second.ip}:{node_port(cluster, service)}"
    return [
        Load.start(first, f"http://{cluster_ip(cluster, service)}", seconds, 10),
        Load.start(cluster.client, outside, seconds, 10),
    ]


def finish(cluster: Cluster, running: list[Load], *, at_once: bool = True) -> int:
    """How many connections were made, none of which failed."""
    results = [load.stop() if at_once else load.finish() for load in running]
    assert [result["failures"] for result in results] == [{} for _ in results], happened(cluster)
    return sum(result["requests"] for result in results)


def happened(cluster: Cluster) -> str:
    """What the API tells of pods and nodes, the oldest first."""
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
    running = loads(cluster, "rolling", 60)
    cluster.kubectl("-n", SPACE, "rollout", "restart", "deployment/rolling")
    cluster.kubectl("-n", SPACE, "rollout", "status", "deployment/rolling", "--timeout=100s")
    assert all(load.process.poll() is None for load in running)
    assert finish(cluster, running, at_once=False) >= ENOUGH
    cluster.kubectl("-n", SPACE, "delete", "deployment/rolling", "service/rolling")


def test_an_outage_of_the_api_loses_no_connection(cluster: Cluster):
    running = loads(cluster, "web", OUTAGE_SECONDS + 20)
    cluster.control_plane.stop_api()
    time.sleep(OUTAGE_SECONDS)
    cluster.control_plane.start_api()
    address = workloads.field(cluster, SPACE, "pod/asker-node1", "{.status.podIP}")
    workloads.apply(cluster, SPACE, by_hand("late", address))
    url = f"http://{cluster_ip(cluster, 'late')}"
    for node in cluster.nodes:
        wait_until(lambda: workloads.ask(node, url), "what was made after it", CONVERGED_SECONDS)  # noqa: B023
    finish(cluster, running)


def by_hand(name: str, address: str) -> list[dict[str, Any]]:
    """A Service and its slice, for which no controller is needed."""
    service = workloads.service(name)
    del service["spec"]["selector"]
    piece = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": f"{name}-1", "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "tcp", "port": workloads.PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]}],
    }
    return [service, piece]


def test_an_upgrade_with_another_value_loses_no_connection(cluster: Cluster):
    running = loads(cluster, "web", 180)
    slowly = {"rollingUpdate": {"maxUnavailable": 1}}
    wanted = release.values(cluster, config={"verbosity": 1}, updateStrategy=slowly)
    release.deploy(cluster, "upgrade", wanted)
    assert all(load.process.poll() is None for load in running)
    finish(cluster, running)


def test_an_upgrade_with_another_map_layout_loses_no_connection(cluster: Cluster, tmp_path: Path):
    cluster.load_image(other_layout(tmp_path / "newer.tar"))
    before = generations(cluster)
    running = loads(cluster, "web", 180)
    wanted = release.values(cluster, image={"tag": "newer"})
    release.deploy(cluster, "upgrade", wanted)
    wait_until(lambda: not before & generations(cluster), "another generation everywhere", 90)
    assert all(load.process.poll() is None for load in running)
    finish(cluster, running)


def other_layout(archive: Path) -> Path:
    """The image with another version of the map layout in it."""
    with working_container() as (container, root):
        (package,) = root.glob("opt/ebpflb/lib/python3*/site-packages/ebpflb")
        change_layout(package, package / "_bpf")
        shutil.rmtree(package / "dataplane/__pycache__")
        name = f"{IMAGE.rpartition(':')[0]}:newer"
        buildah("commit", container, name)
        buildah("push", name, f"oci-archive:{archive}:{name}")
    return archive


def generations(cluster: Cluster) -> set[str]:
    """node/layout-number of all pins."""
    return {
        f"{node.name}/{name}"
        for node in cluster.nodes
        for name in node.exec(["ls", "/sys/fs/bpf/ebpflb"]).stdout.split()
        if name != "links"
    }


def ask_agent(cluster: Cluster, *question: str) -> str:
    """What `ebpflb` says in the agent's pod on node1."""
    agent = cluster.kubectl(
        *("-n", NAMESPACE, "get", "pod", "-l", "app.kubernetes.io/component=agent"),
        *("--field-selector", "spec.nodeName=node1", "-o", "name"),
    ).strip()
    return cluster.kubectl("-n", NAMESPACE, "exec", agent, "--", "ebpflb", *question)


def test_a_pod_behind_no_service_is_named_in_flows_and_so_is_what_made_a_pod(cluster: Cluster):
    assert pod_sees_both(cluster, "asker-node1")
    question = ["flows", "--from", f"{SPACE}/asker-node1", "--service", f"{SPACE}/web"]
    flows = json.loads(ask_agent(cluster, *question, "--last=50", "-o", "json"))
    assert {flow["client"]["pod"] for flow in flows} == {f"{SPACE}/asker-node1"}
    made_by = {
        flow["backend"]["node"]: flow["backend"].get("workload")
        for flow in flows
        if "backend" in flow
    }
    assert made_by == {"node1": "Deployment/web", "node2": None}


@pytest.mark.parametrize("pod", ["asker-node1", "asker-node2"])
def test_explain_in_an_agents_pod_knows_pods_by_name(cluster: Cluster, pod: str):
    """Those of its own node without the API server."""
    question = [f"{SPACE}/{pod}", f"{SPACE}/web:80", "-o", "json"]
    said = ask_agent(cluster, "explain", *question)
    address = workloads.field(cluster, SPACE, f"pod/{pod}", "{.status.podIP}")
    assert f'"{address}"' in said


@pytest.fixture
def plugin(cluster: Cluster) -> Plugin:
    """kubectl ebpflb, with all rights."""
    return Plugin(cluster.kubeconfig)


def test_the_plugin_shows_all_nodes(cluster: Cluster, plugin: Plugin):
    names = [node.name for node in cluster.nodes]
    wait_until(
        lambda: (
            [(each["node"], each["state"]) for each in plugin.json("status")]
            == [(name, "in sync") for name in names]
        ),
        "both nodes in sync",
    )
    services = {each["service"] for each in plugin.json("services", "-A")}
    assert services >= {"web", "kubernetes"}
    carried = plugin.json("top", "-n", SPACE, "--interval", "0.5")
    assert "web" in {each["service"] for each in carried}
    found = plugin.json("doctor", "-A")
    assert sorted({node for each in found for node in each["nodes"]}) == names


def test_the_plugin_merges_the_flows_of_all_nodes(cluster: Cluster, plugin: Plugin):
    wanted = set()
    for node in cluster.nodes:
        pod = f"asker-{node.name}"
        workloads.ask_from_pod(cluster, SPACE, pod, f"http://web.{SPACE}", 2)
        address = workloads.field(cluster, SPACE, f"pod/{pod}", "{.status.podIP}")
        wanted.add((node.name, address))

    def seen() -> set[tuple[str, str]]:
        flows = plugin.json("flows", "-n", SPACE, "--last", "500")
        assert flows == sorted(flows, key=lambda flow: flow["time"])
        return {(flow["node"], flow.get("client", {}).get("address", "")) for flow in flows}

    wait_until(lambda: wanted <= seen(), "flows of both nodes")


def test_what_the_plugin_follows_ends_on_the_nodes_with_it(cluster: Cluster, plugin: Plugin):
    with plugin.start("flows", "-n", SPACE, "--follow", "-o", "jsonl") as following:
        try:
            wait_until(lambda: len(followers()) == len(cluster.nodes), "all agents followed")
            workloads.ask_from_pod(cluster, SPACE, "asker-node1", f"http://web.{SPACE}")
            assert following.stdout
            assert json.loads(following.stdout.readline())["node"] in ("node1", "node2")
        finally:
            os.killpg(following.pid, signal.SIGINT)
    wait_until(lambda: not followers(), "nothing left on the nodes")


def followers() -> list[str]:
    """The commands in agents' pods that print flows as they come."""
    ran = subprocess.run(["ps", "-eo", "args"], check=True, capture_output=True, text=True)
    return [line for line in ran.stdout.splitlines() if "/ebpflb flows" in line]


def test_the_plugin_asks_the_node_that_decides(cluster: Cluster, plugin: Plugin):
    workloads.apply(cluster, SPACE, [workloads.service("empty", app="nobody")])
    for number in (1, 2):
        question = ["explain", "-n", SPACE, f"asker-node{number}"]
        (inside,) = plugin.json(*question, "web:80")
        assert inside["nodes"] == [f"node{number}"]
        wait_until(
            lambda: "no endpoint" in plugin.run(*question, "empty:80", status=1).stdout,  # noqa: B023
            "a Service without endpoints",
        )
    outside = plugin.json("explain", cluster.client.ip, f"{SPACE}/web:80")
    assert sorted(node for each in outside for node in each["nodes"]) == ["node1", "node2"]
    cluster.kubectl("-n", SPACE, "delete", "service/empty")


def test_the_plugin_needs_pods_and_exec_alone(cluster: Cluster, tmp_path: Path):
    where = f"--agent-namespace={NAMESPACE}"
    reads = "get list of pods"
    user = user_with(cluster, "support", tmp_path, reads, "get create of pods/exec")
    assert len(user.json("status", where)) == len(cluster.nodes)
    reader = user_with(cluster, "reader", tmp_path, reads)
    told = reader.run("doctor", where, status=1).stderr
    assert told.startswith("node1, node2: RBAC forbids it: ")
    assert told.count("\n") == 1


def test_a_sysdump_has_logs_and_no_token(plugin: Plugin, tmp_path: Path):
    path = tmp_path / "dump.tar.gz"
    plugin.run("sysdump", "--file", str(path))
    with tarfile.open(path) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"nodes/node1/agent.log", "nodes/node2/frontends.json", "errors.txt"} <= names
    token = json.loads(plugin.kubeconfig.read_text())["users"][0]["user"]["token"]
    assert token.encode() not in gzip.decompress(path.read_bytes())


def test_every_right_of_the_agent_is_used_and_no_other_is_wanted(cluster: Cluster):
    user = f"system:serviceaccount:{NAMESPACE}:ebpflb"
    used = {
        (event["verb"], event["objectRef"]["resource"])
        for event in cluster.control_plane.audit_events()
        if event["user"]["username"] == user and event.get("objectRef", {}).get("resource")
    }
    rules = cluster.kubectl("get", "clusterrole", "ebpflb", "-o", "jsonpath={.rules}")
    granted = {
        (verb, resource)
        for rule in json.loads(rules)
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }
    assert used == granted
