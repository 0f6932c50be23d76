# SPDX-License-Identifier: Apache-2.0
"""A user who may only view one namespace finds what is wrong in it, now and when it is over."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from ebpflb.kubectl.live.app import ExplainScreen
from ebpflb.words.observe import GROUP, VERSION
from tests.cluster.harness import workloads
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.nodes import ClusterNode
from tests.cluster.released.alarm import fires, scraped
from tests.cluster.released.orders import (
    BASKET,
    CART,
    NEW,
    OLD,
    SPACE,
    Times,
    Viewer,
    lines_to,
    now,
    on_page,
    open_orders,
    patch,
    repeated,
    silent,
)
from tests.cluster.released.plugin import viewer_of
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.unit.kubectl.live.keys import Keys, opened

LONG_ONES = 12


@pytest.fixture(scope="module")
def viewer(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewer]:
    """May view the namespace, and nothing else."""
    cluster.control_plane.wait("wait", "--for=condition=Available", f"apiservice/{VERSION}.{GROUP}")
    open_orders(cluster)
    yield Viewer(viewer_of(cluster, SPACE, tmp_path_factory.mktemp("viewer")))
    cluster.kubectl("delete", "namespace", SPACE)


# One endpoint of three answers nobody


def ask_api(cluster: Cluster) -> set[str]:
    """Several clients at the same time, for a moment; the pods that answer."""
    load = ("load", "-connections=6", "-duration=1s", "-timeout=125ms")
    (counted,) = workloads.echo_in_pod(cluster, SPACE, BASKET, *load, f"http://api.{SPACE}")
    return set(counted["answers"])


def test_an_endpoint_answers_nobody(cluster: Cluster, viewer: Viewer, tmp_path: Path):
    pods = workloads.pods(cluster, SPACE, "api")
    name = min(pods)
    lost, before, began = f"{SPACE}/{name}", scraped(cluster.nodes), now()
    with viewer.plugin.page("-n", SPACE) as url:
        with silent(cluster, name, BASKET), repeated(partial(ask_api, cluster)):
            wait_until(lambda: f"{lost} answers nobody" in told_of(viewer, "api"), "it is told")
            of_now(viewer, url, lost)
            wait_until(
                lambda: fires(
                    "EbpflbBackendFails",
                    before,
                    scraped(cluster.nodes),
                    tmp_path,
                    namespace=SPACE,
                    service="api",
                ),
                "the alert",
            )
        then = Times(began, now())
        wait_until_equal(partial(ask_api, cluster), pods)
        assert "On node1: works: " in viewer.run("explain", BASKET, "api:tcp")
        of_then(viewer, url, lost, then)
    port = viewer.top("api", *then.at)
    assert {each["pod"] for each in port["backends"]} == {f"{SPACE}/{each}" for each in pods}


def told_of(viewer: Viewer, service: str) -> str:
    return "; ".join(viewer.top(service)["troubles"])


def of_now(viewer: Viewer, url: str, lost: str) -> None:
    """What commands, the terminal and the page show of it while it lasts."""
    verdict = f"works for 2 of 3: {lost} ("
    assert f"{lost} answers nobody" in viewer.run("top", "--sort", "failures")
    failed = viewer.json("flows", "--verdict", "failed", "--last", "5")
    assert {each["backend"]["pod"] for each in failed} == {lost}
    assert verdict in viewer.run("explain", BASKET, "api:tcp", status=5)
    asyncio.run(finds_on_terminal(viewer, lost, verdict))
    line = wait_until(lambda: lines_to(url, "api"), "the page's lines")[0]
    assert (line["client"]["name"], line["target"]["name"]) == (f"{SPACE}/{BASKET}", lost)
    assert line["failed"]


async def finds_on_terminal(viewer: Viewer, pod: str, verdict: str) -> None:
    """By the keys of `kubectl ebpflb live`, down to what explain says."""
    async with opened(viewer.sight()) as keys:
        await keys.press("slash", *"api:tcp", "enter")
        await keys.until(lambda: pod in " ".join(first_row(keys, "services")))
        await keys.press("enter")
        await keys.until(lambda: any("failed" in row for row in keys.rows("flows")))
        await keys.press("tab", "enter")
        await keys.until(lambda: isinstance(keys.app.screen, ExplainScreen))
        await keys.until(lambda: verdict in " ".join(keys.text("answer").split()))


def first_row(keys: Keys, table: str) -> list[str]:
    return next(iter(keys.rows(table)), [])


def of_then(viewer: Viewer, url: str, lost: str, then: Times) -> None:
    """What commands and the page tell of it when it is over."""
    assert f"{lost} answers nobody" in viewer.run("top", *then.at, "--sort", "failures")
    failed = viewer.json("flows", *then.of_flows, "--verdict", "failed", "--service", "api")
    assert {each["backend"]["pod"] for each in failed} == {lost}
    verdict = f"works for 2 of 3: {lost} ("
    assert verdict in viewer.run("explain", *then.at, BASKET, "api:tcp", status=5)
    line = page_then(url, "api", then)
    assert (line["target"]["name"], line["failed"] > 0) == (lost, True)


def page_then(url: str, service: str, then: Times) -> dict[str, Any]:
    """The page's first line to a Service, in the window of the past with all of that time."""

    def lines() -> list[dict[str, Any]]:
        # The window is refused until it is over.
        with suppress(HTTPError):
            return lines_to(url, service, until=then.page_until)
        return []

    return wait_until(lines, "the page of then")[0]


# Clients outside time out through one node


def outside(cluster: Cluster, node: ClusterNode) -> bool:
    """Whether a client outside is answered through a node."""
    port = workloads.field(cluster, SPACE, "service/front", "{.spec.ports[0].nodePort}")
    question = ["get", "-timeout", "500ms", f"http://{node.ip}:{port}"]
    return cluster.client.exec([binary("echo"), *question]).returncode == 0


def test_clients_outside_time_out_through_one_node(
    cluster: Cluster, viewer: Viewer, tmp_path: Path
):
    first, second = cluster.nodes
    client, began = cluster.client.ip, now()
    question = (client, "front:tcp")
    with viewer.plugin.page("-n", SPACE) as url:
        wait_until(lambda: outside(cluster, first), "the other node serves them")
        before = scraped(cluster.nodes)
        assert not any(outside(cluster, second) for _ in range(3))
        after = scraped(cluster.nodes)
        assert fires("EbpflbNoLocalEndpoint", before, after, tmp_path, instance="node2")
        assert "clients outside: served by node1; dropped by node2" in viewer.run(
            "services", "--service", "front"
        )
        check_drops(viewer, client, "--last", "5")
        answers = viewer.json("explain", *question, status=1)
        assert [(each["nodes"], each["outcome"]) for each in answers] == DIFFERENT
        assert WHY_DROPPED in viewer.run("explain", *question, status=1)
        assert "no local endpoint" in told_of(viewer, "front")
        flows = viewer.sight().flows(f"{SPACE}/front").found or []
        assert ("dropped", "node2") in {(each.verdict, each.node) for each in flows}
        line = wait_until(lambda: lines_to(url, "front"), "the page's lines")[0]
        assert (line["client"]["name"], line["dropped"] >= 3) == (client, True)

        then = Times(began, now())
        patch(cluster, "front", externalTrafficPolicy="Cluster")
        wait_until(lambda: outside(cluster, second), "it serves them too")
        assert "works" in viewer.run("explain", *question)
        assert "dropped by" not in viewer.run("services", "--service", "front")
        check_drops(viewer, client, *then.of_flows)
        answers = viewer.json("explain", *then.at, *question, status=1)
        assert [(each["nodes"], each["outcome"]) for each in answers] == DIFFERENT
        assert WHY_DROPPED in viewer.run("explain", *then.at, *question, status=1)
        assert viewer.top("front", *then.at)["troubles"] == ["no local endpoint (1 node)"]
        assert page_then(url, "front", then)["dropped"] >= 3


DIFFERENT = [(["node2"], "fails"), (["node1"], "works")]
WHY_DROPPED = "only other nodes have a usable endpoint: traffic policy Local"


def check_drops(viewer: Viewer, client: str, *options: str) -> None:
    found = viewer.json("flows", "--verdict", "dropped", *options)
    told = {(each["node"], each["client"]["address"], each["reason"]) for each in found}
    assert told == {("node2", client, "no_local_endpoint")}


# Long connections stay on the old version


@contextmanager
def long_connections(cluster: Cluster) -> Iterator[None]:
    """From a pod, which is gone after the block."""
    load = ("load", "-keep", f"-connections={LONG_ONES}", "-duration=1h", f"http://stock.{SPACE}")
    kubectl = [str(binary("kubectl")), f"--kubeconfig={cluster.kubeconfig}", "-n", SPACE]
    # kubectl complains when the pod is deleted, as it is meant to be.
    command = [*kubectl, "exec", CART, "--", "/echo", *load]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as running:
        try:
            yield
        finally:
            cluster.kubectl("-n", SPACE, "delete", f"pod/{CART}")
            running.wait()


def test_long_connections_stay_on_the_old_version(cluster: Cluster, viewer: Viewer, tmp_path: Path):
    gone = ("connections", "--service", "stock", "--backend-gone")
    before, began = scraped(cluster.nodes), now()
    with viewer.plugin.page("-n", SPACE) as url:
        with long_connections(cluster):
            wait_until(lambda: viewer.top("stock")["active"] == LONG_ONES, "connections")
            patch(cluster, "stock", selector={"app": NEW})
            wait_until(lambda: len(viewer.json(*gone)) == LONG_ONES, "they are on a removed pod")
            who_stays(viewer, url, *gone)
            after = scraped(cluster.nodes)
            alert = "EbpflbConnectionsOnRemoved"
            assert fires(alert, before, after, tmp_path, namespace=SPACE, service="stock")

        flows = ("flows", "--service", "stock", "--since", began)
        wait_until(lambda: len(viewer.json(*flows)) == LONG_ONES, "all of them are recorded")
        then = Times(began, now())
        assert viewer.json(*gone) == viewer.top("stock")["troubles"] == []
        ended = viewer.json("flows", *then.of_flows, "--service", "stock")
        ends = [(each["client"]["pod"], each["backend"]["pod"]) for each in ended]
        assert ends == [(f"{SPACE}/{CART}", f"{SPACE}/{OLD}")] * LONG_ONES
        (backend,) = viewer.top("stock", *then.at)["backends"]
        assert backend["pod"] == f"{SPACE}/{OLD}"
        line = page_then(url, "stock", then)
        assert line["target"]["name"] == f"{SPACE}/{OLD}"
        assert line["connections"] >= LONG_ONES


def who_stays(viewer: Viewer, url: str, *gone: str) -> None:
    """What commands, the terminal and the page show of it while it lasts."""
    assert {each["backend"]["pod"] for each in viewer.json(*gone)} == {f"{SPACE}/{OLD}"}
    assert viewer.json(*gone, "--by", "client") == [
        {"name": f"{SPACE}/{CART}", "connections": LONG_ONES, "removed": LONG_ONES}
    ]
    trouble = f"{LONG_ONES} of {LONG_ONES} connections on removed pods"
    port = viewer.top("stock")
    assert trouble in port["troubles"]
    active = {each["pod"]: each["active"] for each in port["backends"]}
    assert active == {f"{SPACE}/{OLD}": LONG_ONES, f"{SPACE}/{NEW}": 0}
    seen = viewer.sight().services().found or []
    assert trouble in {told for each in seen for told in each.troubles}
    name = f"{SPACE}/stock"
    wait_until(lambda: on_page(url, "view", service=name)["active"] == LONG_ONES, "the page")


def test_none_of_it_needed_more_than_to_look(cluster: Cluster, viewer: Viewer):
    name = f"system:serviceaccount:{SPACE}:viewer"
    events = cluster.control_plane.audit_events()
    asked = {
        (each["verb"], each["objectRef"].get("subresource", ""))
        for each in events
        if each["user"].get("username") == name and "objectRef" in each
    }
    assert {("list", ""), ("watch", "")} <= asked <= {("get", ""), ("list", ""), ("watch", "")}
