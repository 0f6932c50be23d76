# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb against two real nodes: its output, the rights it needs, and no leftovers."""

import gzip
import json
import os
import signal
import tarfile
from contextlib import suppress
from pathlib import Path

from ebpflb.lab import processes
from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness import workloads
from tests.cluster.harness.cluster import Cluster
from tests.cluster.released.plugin import Plugin, user_with
from tests.cluster.released.shop import SPACE
from tests.e2e.harness.waiting import wait_until


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
    asked = ("flows", "-n", SPACE, "--follow", "-o", "jsonl", "--via", "exec")
    with plugin.start(*asked) as following:
        try:
            wait_until(lambda: len(followers(cluster)) == 2, "both agents followed")
            workloads.ask_from_pod(cluster, SPACE, "asker-node1", f"http://web.{SPACE}")
            assert following.stdout
            assert json.loads(following.stdout.readline())["node"] in ("node1", "node2")
        finally:
            os.killpg(following.pid, signal.SIGINT)
    wait_until(lambda: not followers(cluster), "nothing left on the nodes")


def followers(cluster: Cluster) -> list[str]:
    """Commands in agents' pods that follow flows."""
    found = []
    for node in cluster.nodes:
        for pid in processes.in_cgroup(node.cgroup):
            with suppress(OSError):
                found.append(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return [each for each in found if "/ebpflb flows" in each]


def test_the_plugin_asks_the_node_that_decides(cluster: Cluster, plugin: Plugin):
    for number in (1, 2):
        (inside,) = plugin.json("explain", "-n", SPACE, f"asker-node{number}", "web:80")
        assert inside["nodes"] == [f"node{number}"]
    outside = plugin.json("explain", cluster.client.ip, f"{SPACE}/web:80")
    assert sorted(node for each in outside for node in each["nodes"]) == ["node1", "node2"]


def test_the_plugin_needs_pods_daemonsets_and_exec_alone(cluster: Cluster, tmp_path: Path):
    where = f"--agent-namespace={NAMESPACE}"
    reads = ("get list of pods", "list of daemonsets.apps")
    user = user_with(cluster, "support", tmp_path, *reads, "get create of pods/exec")
    assert len(user.json("status", where)) == len(cluster.nodes)
    reader = user_with(cluster, "reader", tmp_path, *reads)
    told = reader.run("doctor", where, status=1).stderr
    assert told.startswith("node1, node2: RBAC forbids it: ")
    assert told.count("\n") == 1


def test_kubectl_completes_its_words(plugin: Plugin):
    assert plugin.completed("flows", "--verdict", "failed,d") == ["failed,dropped", ":4"]


def test_a_sysdump_has_logs_and_no_token(plugin: Plugin, tmp_path: Path):
    path = tmp_path / "dump.tar.gz"
    plugin.run("sysdump", "--file", str(path))
    with tarfile.open(path) as tar:
        names = {name.partition("/")[2] for name in tar.getnames()}
    assert {"nodes/node1/agent.log", "nodes/node2/frontends.json", "errors.txt"} <= names
    token = json.loads(plugin.kubeconfig.read_text())["users"][0]["user"]["token"]
    assert token.encode() not in gzip.decompress(path.read_bytes())
