# SPDX-License-Identifier: Apache-2.0
"""What the page of `kubectl ebpflb ui` makes of real connections on two nodes."""

import subprocess
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.pages import pages_of
from ebpflb.kubectl.ui.traffic import LiveTraffic
from ebpflb.lab import Lab, LabNode
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.command import PROGRAM, ebpflb
from tests.e2e.harness.questions import REFUSED, fate
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.e2e.rules.test_source_ranges import NOBODY, limited, vips
from tests.e2e.traffic.test_ejection import broken

PORT = 80
SECONDS = 0.5
CLIENTS = ("pod-1-1", "pod-2-1")


@contextmanager
def page_of(lab: Lab) -> Iterator[Any]:
    """What the page may ask for, with all nodes followed."""
    processes: list[subprocess.Popen[str]] = []

    def follow(node: LabNode) -> Generator[str, None, None]:
        command = [*PROGRAM, "flows", "--follow", "-o", "jsonl"]
        processes.append(node.popen(command, stdout=subprocess.PIPE, text=True))
        assert processes[-1].stdout
        yield from processes[-1].stdout

    def run(node: str, arguments: Any) -> str:
        return ebpflb(lab.node(node), *arguments).stdout

    traffic = LiveTraffic()
    following = Following(traffic, lambda: {each.name: partial(follow, each) for each in lab.nodes})
    following.start()
    try:
        yield pages_of(traffic, following, run)
    finally:
        following.stop()
        for process in processes:
            with process:
                process.kill()


@pytest.fixture
def pages(lab):
    """The page of both nodes."""
    with page_of(lab) as made:
        yield made


def lines(pages: Any, **query: str) -> set[tuple[str, str, str]]:
    """Client, Service, pod."""
    found = pages["view"]({"group": "pod", **query})["rows"]
    return {tuple(row[end]["name"] for end in ("client", "service", "target")) for row in found}


def followed(cluster: Cluster, pages: Any) -> None:
    """Return when flows of both nodes arrive."""
    spec = cluster.serve(cluster.new("ClusterIP"), cluster.lab.pods)
    clients = [cluster.lab.pod(name) for name in CLIENTS]

    def is_seen() -> bool:
        for client in clients:
            fate(client, cluster.cluster_ips(spec)[0], PORT)
        return len({client for client, *_ in lines(pages)}) == len(clients)

    wait_until(is_seen, "flows of both nodes")


def test_broken_services_are_found_whatever_node_the_client_is_on(cluster, lab, pages):
    followed(cluster, pages)
    (pod, *_) = lab.pods_on("node2")
    fine = cluster.serve(cluster.new("ClusterIP"), [pod])
    empty = cluster.serve(cluster.new("ClusterIP"))
    dead = cluster.serve(cluster.new("ClusterIP"), [pod], target_port=9)
    closed = cluster.serve(limited(cluster.new("LoadBalancer"), NOBODY), [pod])
    places = [cluster.cluster_ips(each)[0] for each in (fine, empty, dead)]
    places.append(vips(cluster, closed)[0])
    for name in CLIENTS:
        for address in places:
            fate(lab.pod(name), address, PORT, seconds=SECONDS)
    ends = (
        (fine, "forwarded", f"default/{pod.name}"),
        (empty, "refused", "refused: no endpoint"),
        (dead, "failed", f"default/{pod.name}"),
        (closed, "dropped", "dropped: source range"),
    )
    for spec, verdict, target in ends:
        wanted = {(f"default/{name}", f"default/{spec.name}", target) for name in CLIENTS}
        found = partial(lines, pages, service=f"default/{spec.name}", verdict=verdict)
        wait_until_equal(found, wanted)
    view = pages["view"]({})
    assert {each["node"]: each["state"] for each in view["nodes"]} == {
        "node1": "following",
        "node2": "following",
    }
    assert [each["unreadable"] for each in view["nodes"]] == [0, 0]


def test_a_flow_is_explained_on_its_node(cluster, lab, pages):
    followed(cluster, pages)
    spec = cluster.serve(cluster.new("ClusterIP"))
    (address, *_) = cluster.cluster_ips(spec)
    fate(lab.pod("pod-2-1"), address, PORT, seconds=SECONDS)
    query = {"via": f"service:default/{spec.name}"}
    flow = wait_until(lambda: pages["line"](query)["flows"], "the refusal")[0]
    found = pages["explain"]({"flow": str(flow["number"])})
    assert found["node"] == "node2"
    assert found["text"].startswith("fails: refused at the socket hook: no usable endpoint")


def test_the_page_says_of_a_service_what_explain_says(cluster, lab, pages):
    followed(cluster, pages)
    client, dead = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    spec = cluster.serve(cluster.new("ClusterIP"), lab.pods)
    (address, *_) = cluster.cluster_ips(spec)
    query = {"via": f"service:default/{spec.name}", "verdict": "failed"}

    def failed() -> Any:
        fate(client, address, PORT, seconds=SECONDS)
        return pages["line"](query)["flows"]

    with broken(dead, REFUSED):
        (flow, *_) = wait_until(failed, "a connection fails")
    text = pages["explain"]({"flow": str(flow["number"])})["text"]
    named = f"default/{dead.name} ({dead.ipv4}) refused its last connection"
    assert text.splitlines()[0] == f"works for {len(lab.pods) - 1} of {len(lab.pods)}: {named}"
