# SPDX-License-Identifier: Apache-2.0
"""Prometheus finds the agents, and takes what they say of Services as they say it."""

from tests.chart.harness.rendering import (
    EVERYTHING,
    agent,
    container,
    installed,
    of_kind,
    render,
)

KINDS = ("Service", "ServiceMonitor", "PodMonitor", "PrometheusRule")


def test_nothing_is_there_unless_it_is_asked_for() -> None:
    objects = render()
    assert not [each for kind in KINDS for each in of_kind(objects, kind)]
    ports = container(agent(), "ebpflb")["ports"]
    assert [port["name"] for port in ports] == ["healthz"]


def test_the_service_is_headless_and_selects_the_agents_alone() -> None:
    objects = render(EVERYTHING)
    service = installed(objects, "Service")["spec"]
    labels = installed(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert service["clusterIP"] == "None"
    assert service["selector"].items() <= labels.items()
    for other in (*of_kind(objects, "Job"), of_kind(objects, "DaemonSet")[-1]):
        others = other["spec"]["template"]["metadata"]["labels"]
        assert not service["selector"].items() <= others.items()


def test_both_monitors_select_what_they_are_for() -> None:
    objects = render(EVERYTHING, namespace="network")
    service, monitor = installed(objects, "Service"), installed(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    assert wanted <= service["metadata"]["labels"].items()
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    pods = installed(objects, "PodMonitor")["spec"]
    labels = installed(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert pods["selector"]["matchLabels"].items() <= labels.items()
    assert pods["podMetricsEndpoints"][0]["port"] == "metrics"
    assert monitor["spec"]["namespaceSelector"] == pods["namespaceSelector"]
    assert pods["namespaceSelector"] == {"matchNames": ["network"]}


def test_monitors_take_what_prometheus_can_be_told() -> None:
    objects = render(EVERYTHING, namespace="network")
    monitor = installed(objects, "ServiceMonitor")["spec"]
    (endpoint,) = monitor["endpoints"]
    assert (endpoint["scrapeTimeout"], monitor["sampleLimit"]) == ("10s", 5000)
    assert [each["targetLabel"] for each in endpoint["relabelings"]] == ["node", "cluster"]
    assert endpoint["metricRelabelings"] == [{"action": "labeldrop", "regex": "instance"}]
    pods = installed(objects, "PodMonitor")["spec"]
    (usual,) = pods["podMetricsEndpoints"]
    assert set(usual) == {"port", "honorLabels", "interval", "relabelings"}
    assert "sampleLimit" not in pods


def test_monitors_and_rules_may_lie_where_prometheus_looks() -> None:
    there = {"enabled": True, "namespace": "monitoring"}
    kinds = {"ServiceMonitor": "serviceMonitor", "PodMonitor": "podMonitor"}
    metrics = {"enabled": True, "prometheusRule": there, **dict.fromkeys(kinds.values(), there)}
    objects = render({"metrics": metrics}, namespace="network")
    for kind in (*kinds, "PrometheusRule"):
        assert installed(objects, kind)["metadata"]["namespace"] == "monitoring"
    for kind in kinds:
        selected = installed(objects, kind)["spec"]["namespaceSelector"]
        assert selected == {"matchNames": ["network"]}


def test_labels_of_services_are_not_replaced_by_those_of_what_is_scraped() -> None:
    objects = render(EVERYTHING)
    (endpoint,) = installed(objects, "ServiceMonitor")["spec"]["endpoints"]
    (pods,) = installed(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is pods["honorLabels"] is True
