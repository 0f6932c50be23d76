# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes two agents: every panel has data, and alerts fire correctly.

`pytest -s` prints how many series each panel has.
"""

import itertools
import re
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path

import pytest

from ebpflb.lab import Lab, LabConfig
from ebpflb.lab.member import NodeAgent
from ebpflb.model.flow import time_of_id
from tests.chart.harness.alerts import alerts, rules, write_rules
from tests.chart.harness.dashboards import Dashboard, Query, dashboards, replaced, values_asked_for
from tests.chart.harness.rendering import EVERYTHING, installed, render
from tests.e2e.harness.cluster import Cluster, built, lab_name, started
from tests.e2e.harness.exhaustion import exhausted, leave_few_ports
from tests.e2e.harness.manifest_api import manifest_api
from tests.e2e.harness.prometheus import Prometheus, Scrapes, prometheus
from tests.e2e.harness.trouble import traffic_and_trouble
from tests.e2e.harness.waiting import wait_until, wait_until_equal

pytestmark = pytest.mark.bpf

OPTIONS = [
    *("--metrics-bind-address", "0.0.0.0:10249"),
    *("--metrics-backends", "true"),
    *("--metrics-latency", "true"),
    *("--flow-rate", "5"),
]
# Grafana's values for a panel of 15 minutes whose data source is scraped every 3 seconds.
INTERVALS = {"__interval": "3s", "__rate_interval": "12s", "__range": "15m"}
SECONDS = 120
PROVOKED = {
    "EbpflbBackendFails",
    "EbpflbConflicts",
    "EbpflbConnectionsFail",
    "EbpflbConntrackFull",
    "EbpflbDropping",
    "EbpflbErrorBudgetFast",
    "EbpflbErrorBudgetSlow",
    "EbpflbFlowRecordsLost",
    "EbpflbHealthChecksNotAnswered",
    "EbpflbImbalance",
    "EbpflbMapNearlyFull",
    "EbpflbNoLocalEndpoint",
    "EbpflbServiceRefuses",
    "EbpflbSourceErrors",
    "EbpflbSourcePortsUsedUp",
    "EbpflbSourceRangeDrops",
}
# There is an agent, this kernel may have every feature, and there is no kubelet.
NOTHING = {"EbpflbAbsent", "EbpflbKernelLacks", "EbpflbMemoryNearLimit"}
GONE = {"EbpflbAbsent", "EbpflbAgentDown", "EbpflbManyAgentsDown"}


@dataclass(frozen=True, slots=True)
class Scene:
    """service: one without faults."""

    cluster: Cluster
    prometheus: Prometheus
    service: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory) -> Iterator[Scene]:
    """Traffic and faults, and a Prometheus that scrapes two agents."""
    folder = tmp_path_factory.mktemp("prometheus")
    with (
        built(LabConfig(lab_name(), pods=2)) as lab,
        agents(lab, folder) as cluster,
        prometheus(lab.client, folder, scrapes(cluster, folder)) as found,
        traffic_and_trouble(cluster) as service,
        exhausted(cluster, lab.node("node2")),
    ):
        yield Scene(cluster, found, service.name)


@contextmanager
def agents(lab: Lab, logs: Path) -> Iterator[Cluster]:
    """One with manifests, one with an API."""
    first, second = lab.nodes
    leave_few_ports(second)
    with manifest_api(second) as (node, source), started(lab, logs, OPTIONS, [first.name]) as one:
        options = [*OPTIONS, *source, "--state-cache-max-age=0"]
        agent = NodeAgent(node, logs / f"{node.name}.log", options)
        agent.start()
        try:
            agent.wait_in_sync()
            yield Cluster(lab, {**one.agents, node.name: agent})
        finally:
            agent.kill()


def scrapes(cluster: Cluster, folder: Path) -> Scrapes:
    """As the operator derives them from the chart's monitor, with its rules, whose alerts fire at
    once.
    """
    groups = {
        name: [{key: rule[key] for key in rule if key != "for"} for rule in found]
        for name, found in rules().items()
    }
    monitor = installed(render(EVERYTHING), "ServiceMonitor")["spec"]
    labels = {"namespace": "kube-system", "service": "ebpflb-metrics", "endpoint": "metrics"}
    targets = [
        {"targets": [f"{node.ipv4}:10249"], "labels": {**labels, "node": node.name}}
        for node in cluster.nodes
    ]
    honors = monitor["endpoints"][0]["honorLabels"]
    return Scrapes("ebpflb", targets, honors, [write_rules(groups, folder / "rules.yaml")])


def probe(cluster: Cluster) -> None:
    """Query the agents' health, as kubelets and load balancers do."""
    for node in cluster.nodes:
        with cluster.lab.client.entered():
            for path in ("/healthz", "/livez"):
                connection = HTTPConnection(node.ipv4, 10256, timeout=SECONDS)
                connection.request("GET", path)
                connection.getresponse().read()
                connection.close()


@contextmanager
def stirred(cluster: Cluster) -> Iterator[None]:
    """Endpoint changes and health queries, repeated inside the block.

    A single event is in a rate for seconds, and a busy machine may take longer to evaluate
    everything.
    """
    spec, stop = cluster.new(), threading.Event()

    def stir() -> None:
        for number in itertools.count():
            cluster.serve(spec, cluster.lab.pods[number % 2 :], wait=False)
            probe(cluster)
            if stop.wait(0.5):
                return

    with ThreadPoolExecutor(1) as pool:
        stirring = pool.submit(stir)
        try:
            yield
        finally:
            stop.set()
    stirring.result()


def chosen(scene: Scene, dashboard: Dashboard) -> Mapping[str, str]:
    """The values of a dashboard's variables: everything that Grafana would offer, if All is
    allowed.
    """
    values = dict(INTERVALS)
    for name, variable in dashboard.variables.items():
        if variable["type"] == "query":
            selector, label = values_asked_for(variable)
            offered = scene.prometheus.label_values(replaced(selector, values), label)
            wanted = scene.service if name == "service" else next(iter(offered), "")
            # Nothing here has the label cluster.
            is_open = variable.get("allValue") == ".*"
            assert wanted in offered or is_open, f"{dashboard.path.stem}: {name}"
            values[name] = variable["allValue"] if variable["includeAll"] else wanted
    return values


def series_of(scene: Scene) -> Mapping[Query, int]:
    """The number of series that each expression has now."""
    return {
        query: len(scene.prometheus.query(replaced(query.expression, values)))
        for dashboard in dashboards()
        for values in [chosen(scene, dashboard)]
        for query in dashboard.queries()
    }


def firing(scene: Scene) -> set[str]:
    return {each["labels"]["alertname"] for each in scene.prometheus.alerts()}


def down(scene: Scene) -> set[str]:
    """The nodes whose agent is down by an alert."""
    return {
        each["labels"]["node"]
        for each in scene.prometheus.alerts()
        if each["labels"]["alertname"] == "EbpflbAgentDown"
    }


def test_every_panel_of_every_dashboard_has_something_to_show(scene: Scene) -> None:
    wait_until(lambda: scene.prometheus.query("ebpflb_service_endpoints"), "a scrape", SECONDS)
    most: dict[Query, int] = {}

    def missing() -> list[Query]:
        for query, count in series_of(scene).items():
            most[query] = max(count, most.get(query, 0))
        return [query for query, count in most.items() if not count]

    try:
        with stirred(scene.cluster):
            wait_until(lambda: not missing(), "every expression has data", SECONDS)
    finally:
        for query, count in most.items():
            print(f"{query.dashboard:9} {query.panel:45} {query.ref} {count:4}")


def test_buckets_of_latency_lead_to_flows_of_each_node(scene: Scene) -> None:
    def nodes() -> set[str]:
        found = scene.prometheus.exemplars("ebpflb_service_connect_seconds_bucket")
        return {each["node"] for each in found if time_of_id(each["flow_id"])}

    wait_until_equal(nodes, {node.name for node in scene.cluster.nodes}, SECONDS)


def test_every_alert_has_something_to_judge_by(scene: Scene) -> None:
    judged = {
        rule["alert"]: re.sub(r" (>=?|==) (?=[\d.]+\b)", r" \1 bool ", rule["expr"])
        for rule in alerts()
        if rule["alert"] not in NOTHING
    }
    assert all(" bool " in expression for expression in judged.values())

    def missing() -> list[str]:
        return [name for name, each in judged.items() if not scene.prometheus.query(each)]

    wait_until_equal(missing, [], SECONDS)


def test_alerts_fire_for_what_is_wrong_and_for_nothing_else(scene: Scene) -> None:
    wait_until_equal(lambda: firing(scene), PROVOKED, SECONDS)
    for alert in scene.prometheus.alerts():
        texts = alert["annotations"]
        assert set(texts) == {"summary", "description", "runbook_url"}
        assert not [text for text in texts.values() if "<no value>" in text or "<error" in text]


def test_alerts_fire_for_agents_that_are_gone(scene: Scene) -> None:
    for agent in scene.cluster.agents.values():
        agent.kill()
    wait_until(lambda: firing(scene) >= GONE, f"{GONE} fire", SECONDS)
    # Each target is scraped at a time of its own.
    wait_until_equal(lambda: down(scene), {node.name for node in scene.cluster.nodes}, SECONDS)
