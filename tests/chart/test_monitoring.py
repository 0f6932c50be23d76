# SPDX-License-Identifier: Apache-2.0
"""Prometheus finds the agents, and keeps their labels of Services unchanged."""

from tests.chart.harness.rendering import (
    EVERYTHING,
    Object,
    agent,
    container,
    installed,
    of_kind,
    render,
    settings_file,
    template,
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
    others = ("Job", "Deployment")
    for other in (
        *(one for kind in others for one in of_kind(objects, kind)),
        of_kind(objects, "DaemonSet")[-1],
    ):
        others = other["spec"]["template"]["metadata"]["labels"]
        assert not service["selector"].items() <= others.items()


def test_both_monitors_select_what_they_are_for() -> None:
    objects = render(EVERYTHING, namespace="network")
    service, monitor = installed(objects, "Service"), installed(objects, "ServiceMonitor")
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = of_kind(objects, "Service")
    assert len(services) == 2
    assert [each for each in services if wanted <= each["metadata"]["labels"].items()] == [service]
    assert monitor["spec"]["endpoints"][0]["port"] == service["spec"]["ports"][0]["name"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    pods = installed(objects, "PodMonitor")["spec"]
    labels = installed(objects, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert pods["selector"]["matchLabels"].items() <= labels.items()
    assert pods["podMetricsEndpoints"][0]["port"] == "metrics"
    assert monitor["spec"]["namespaceSelector"] == pods["namespaceSelector"]
    assert pods["namespaceSelector"] == {"matchNames": ["network"]}


def test_monitors_have_only_what_prometheus_accepts() -> None:
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


def test_metrics_behind_a_proxy_leave_the_node_over_tls_only() -> None:
    proxy = {"image": "registry.example/kube-rbac-proxy:1", "port": 20247}
    metrics = {"enabled": True, "rbacProxy": proxy, "serviceMonitor": {"enabled": True}}
    values = {"metrics": metrics, "k8sServiceHost": "192.0.2.1"}
    objects = render(values)
    pod = agent(values)
    own, beside = container(pod, "ebpflb"), container(pod, "rbac-proxy")
    assert [port["name"] for port in own["ports"]] == ["healthz"]
    assert beside["ports"] == [{"name": "metrics", "containerPort": 20247}]
    assert beside["image"] == proxy["image"]
    listens, upstream, paths = beside["args"]
    assert listens == "--secure-listen-address=[::]:20247"
    assert upstream == "--upstream=http://127.0.0.1:10249/"
    assert "metrics-bind-address: 127.0.0.1:10249" in settings_file(objects)
    assert paths == "--allow-paths=/metrics,/metrics/slis"
    assert beside["env"][0] == {"name": "KUBERNETES_SERVICE_HOST", "value": "192.0.2.1"}
    assert beside["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert installed(objects, "Service")["spec"]["ports"][0]["port"] == 20247
    (endpoint,) = installed(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["port"]) == ("https", "metrics")
    assert endpoint["bearerTokenFile"].endswith("/token")


def test_only_such_a_proxy_may_create_reviews() -> None:
    def asks(values: Object) -> set[str]:
        rules = installed(render(values), "ClusterRole")["rules"]
        return {name for rule in rules for name in rule["resources"] if name.endswith("reviews")}

    assert asks({"metrics": {"enabled": True}}) == set()
    metrics = {"enabled": True, "rbacProxy": {"image": "a"}}
    assert asks({"metrics": metrics}) == {"tokenreviews", "subjectaccessreviews"}


def test_a_pod_monitor_has_no_token_for_the_proxy() -> None:
    metrics = {"enabled": True, "rbacProxy": {"image": "a"}, "podMonitor": {"enabled": True}}
    done = template({"metrics": metrics})
    assert done.returncode == 1
    assert "use metrics.serviceMonitor" in done.stderr


def test_labels_of_services_are_not_replaced_by_those_of_what_is_scraped() -> None:
    objects = render(EVERYTHING)
    (endpoint,) = installed(objects, "ServiceMonitor")["spec"]["endpoints"]
    (pods,) = installed(objects, "PodMonitor")["spec"]["podMetricsEndpoints"]
    assert endpoint["honorLabels"] is pods["honorLabels"] is True
