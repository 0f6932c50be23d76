# SPDX-License-Identifier: Apache-2.0
"""One command and the page find a broken Service used by clients on any node and outside."""

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import pytest

from ebpflb.errors import EbpflbError
from tests.cluster.harness import workloads
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.cluster import Cluster
from tests.cluster.released.plugin import Plugin
from tests.cluster.released.shop import SPACE, by_hand, node_port
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.ui.browser import Browser
from tests.ui.page import table

pytestmark = pytest.mark.slow

LOAD_BALANCER_IP = "203.0.113.10"
# In a node's pod range; no pod has it.
NOBODY = "10.244.1.200"
CLOSED_PORT = 9
INSIDE = ("asker-node1", "asker-node2")
OUTSIDE = "outside"


class Fault(NamedTuple):
    """What is reported about a broken Service.

    answer, detail: how explain begins, and what else it says. shown: by the page. counted, trouble:
    by top.
    """

    answer: str
    detail: str
    shown: str
    counted: str
    trouble: str = ""


# By the name of the Service.
FAULTS = {
    "empty": Fault(
        *("fails: refused", "has none in this family", "refused: no endpoint"),
        *("refused", "no endpoint"),
    ),
    "closed": Fault("fails: dropped", "only 192.0.2.0/24", "dropped: source range", "dropped"),
    "gone": Fault(
        *("likely fails:", "did not answer its last connection", "failed: no answer"),
        *("failed", f"{NOBODY} answers nobody"),
    ),
    "deaf": Fault(
        *("likely fails:", "refused its last connection", "failed: backend refused"),
        *("failed", "refuses connections"),
    ),
}


def objects() -> list[dict[str, Any]]:
    """No pod matches; source ranges exclude the client; ready, but deleted; ready, but not
    listening.
    """
    closed = {"type": "LoadBalancer", "loadBalancerSourceRanges": ["192.0.2.0/24"]}
    deaf = workloads.service("deaf", app="asker-node2", type="NodePort")
    for port in deaf["spec"]["ports"]:
        port["targetPort"] = CLOSED_PORT
    return [
        workloads.service("empty", app="nobody", type="NodePort"),
        workloads.service("closed", app="web", **closed),
        *by_hand("gone", NOBODY, type="NodePort"),
        deaf,
    ]


@pytest.fixture(scope="module", autouse=True)
def services(cluster: Cluster) -> Iterator[None]:
    """One for each fault."""
    workloads.apply(cluster, SPACE, objects())
    status = {"status": {"loadBalancer": {"ingress": [{"ip": LOAD_BALANCER_IP}]}}}
    patch = ["--subresource=status", "--type=merge", "-p", json.dumps(status)]
    cluster.kubectl("-n", SPACE, "patch", "service/closed", *patch)
    yield
    cluster.kubectl(
        "-n", SPACE, "delete", "endpointslice/gone-1", *map("service/{}".format, FAULTS)
    )


def url_for(cluster: Cluster, client: str, service: str) -> str:
    """The address for a client."""
    if service == "closed":
        return f"http://{LOAD_BALANCER_IP}"
    if client == OUTSIDE:
        return f"http://{cluster.nodes[1].ip}:{node_port(cluster, service)}"
    return f"http://{service}.{SPACE}"


def use_all(cluster: Cluster, stop: threading.Event) -> None:
    """Every client sends requests to every broken Service until `stop`, at least once."""
    ways = [(client, service) for client in (*INSIDE, OUTSIDE) for service in FAULTS]

    def use(way: tuple[str, str]) -> None:
        client, url = way[0], url_for(cluster, *way)
        question = ["get", "-timeout", "500ms", url]
        while True:
            if client == OUTSIDE:
                assert cluster.client.exec([binary("echo"), *question]).returncode
            else:
                with suppress(EbpflbError):
                    workloads.echo_in_pod(cluster, SPACE, client, *question)
                    pytest.fail(f"{url} answers {client}")
            if stop.wait(0.2):
                return

    with ThreadPoolExecutor(len(ways)) as pool:
        list(pool.map(use, ways))


@contextmanager
def in_use(cluster: Cluster) -> Iterator[None]:
    """Requests to every broken Service, inside the block."""
    stop = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        used = pool.submit(use_all, cluster, stop)
        try:
            yield
        finally:
            stop.set()
    used.result()


@pytest.fixture(scope="module")
def browser(cluster: Cluster, plugin: Plugin) -> Iterator[Browser]:
    """With the page, opened before the first request."""
    with plugin.page("--via", "exec") as url, Browser() as made:
        made.open(f"{url}?view=table&group=pod&window=300")
        made.wait("document.querySelector('#nodes summary').textContent === '2 nodes'")
        yield made
        assert not made.leave()[1]


@pytest.fixture(scope="module")
def carried(cluster: Cluster, plugin: Plugin, browser: Browser) -> dict[str, Any]:
    """What one `kubectl ebpflb top` reported about each Service, while all were used."""

    def all_used() -> dict[str, Any]:
        found = plugin.json("top", "-n", SPACE, "--interval", "2")
        said = {each["service"]: each for each in found if each["protocol"] == "TCP"}
        is_complete = all(said.get(name, {}).get(fault.counted) for name, fault in FAULTS.items())
        return said if is_complete else {}

    with in_use(cluster):
        return wait_until(all_used, "all failures counted in one interval", 120)


@pytest.mark.parametrize("service", FAULTS)
def test_top_shows_it(carried: dict[str, Any], service: str):
    assert FAULTS[service].trouble in " ".join(carried[service]["troubles"])


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize("service", FAULTS)
def test_explain_finds_it(cluster: Cluster, plugin: Plugin, service: str):
    def told(client: str) -> str:
        target = f"{service}:tcp"
        if service == "closed" and client != OUTSIDE:
            # For a client inside, the name means the ClusterIP, which has no source ranges.
            target = f"{LOAD_BALANCER_IP}:80"
        source = cluster.client.ip if client == OUTSIDE else client
        return plugin.run("explain", "-n", SPACE, source, target, status=1).stdout

    with ThreadPoolExecutor() as pool:
        answers = list(pool.map(told, (*INSIDE, OUTSIDE)))
    nodes = ["On node1:", "On node2:", "On node1, node2 (2 nodes)"]
    # A NodePort has another address on each node.
    nodes[2] += ":" if service == "closed" else ", whose answers differ:"
    assert [answer.splitlines()[0] for answer in answers] == nodes
    for answer in answers:
        assert f"\n\n{FAULTS[service].answer}" in answer
        # Long lines are wrapped.
        assert FAULTS[service].detail in " ".join(answer.split())


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize("service", FAULTS)
def test_the_page_shows_it(cluster: Cluster, browser: Browser, service: str):
    def clients() -> set[str]:
        rows = [row for row in table(browser) if row[1] == f"{SPACE}/{service}"]
        return {row[0] for row in rows if FAULTS[service].shown in row[6]}

    pods = {f"{SPACE}/{client}" for client in INSIDE}
    wait_until_equal(clients, pods | {cluster.client.ip}, timeout=30)


@pytest.mark.usefixtures("carried")
@pytest.mark.parametrize("service", FAULTS)
def test_the_page_explains_it(browser: Browser, service: str):
    rows = "[...document.querySelectorAll('#table-view tbody tr')]"
    name = json.dumps(f"{SPACE}/{service}")
    browser.run(f"{rows}.find((row) => row.children[1].textContent === {name}).click()")
    browser.wait(f"document.querySelector('#panel').textContent.includes({name})")
    browser.wait("document.querySelector('#panel .flows button')")
    browser.run("document.querySelector('#panel .flows button').click()")
    browser.wait("document.querySelector('#panel pre').textContent.startsWith('node')")
    assert f"\n\n{FAULTS[service].answer}" in browser.text("#panel pre")
    browser.press("Escape")
