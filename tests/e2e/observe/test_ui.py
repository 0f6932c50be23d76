# SPDX-License-Identifier: Apache-2.0
"""What the page of `kubectl ebpflb ui` shows of real connections on two nodes."""

from functools import partial
from typing import Any

import pytest

from tests.e2e.harness.questions import REFUSED, fate
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.e2e.steps.broken import broken
from tests.e2e.steps.limited import NOBODY, limited, vips
from tests.e2e.steps.page import CLIENTS, PORT, followed, lines, page_of, until_now

SECONDS = 0.5


@pytest.fixture
def pages(lab):
    """The page of both nodes."""
    with page_of(lab) as made:
        yield made


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


def test_the_past_has_what_the_agents_have_kept(cluster, lab, pages):
    followed(cluster, pages)
    spec = cluster.serve(cluster.new("ClusterIP"))
    (address, *_) = cluster.cluster_ips(spec)
    for name in CLIENTS:
        fate(lab.pod(name), address, PORT, seconds=SECONDS)
    query = {"service": f"default/{spec.name}", "window": "300"}
    wanted = {
        (f"default/{name}", f"default/{spec.name}", "refused: no endpoint") for name in CLIENTS
    }
    wait_until_equal(partial(lines, pages, **query), wanted)
    assert lines(pages, until=until_now(), **query) == wanted


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
