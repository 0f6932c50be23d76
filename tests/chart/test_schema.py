# SPDX-License-Identifier: Apache-2.0
"""Wrong values are rejected before anything is installed, and the message names the value."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ebpflb.config.options import OPTIONS
from tests import options
from tests.chart import readme
from tests.chart.harness.alerts import alerts
from tests.chart.harness.rendering import CHART, EVERYTHING, Object, template

SCHEMA = json.loads((CHART / "values.schema.json").read_text())
# Labels, annotations, selectors and quantities have any keys; so has what a parent chart shares.
OPEN = (
    *("abels", "nnotations", "/nodeSelector", "/requests", "/limits", "/global"),
    # Parts of Kubernetes' and Prometheus's objects, which their API servers check.
    *("Affinity", "elabelings[]", "/extraEnv[]", "/extraVolumes[]", "/extraVolumeMounts[]"),
    *("/postStart", "/preStop", "/extraObjects[]"),
)
WRONG = [
    pytest.param({"metrics": {"enable": True}}, "'enable' not allowed", id="a typo inside"),
    pytest.param({"tolleration": []}, "'tolleration' not allowed", id="a typo at the top"),
    pytest.param({"config": {"socketLB": "host"}}, "'socketLB' not allowed", id="a wrong option"),
    pytest.param(
        {"config": {"cgroup-root": "/"}}, "'cgroup-root' not allowed", id="an option of the chart"
    ),
    pytest.param({"config": {"attach": "xdp"}}, "'auto', 'tcx', 'clsact'", id="no such choice"),
    pytest.param(
        {"config": {"dsr": True}}, "'off', 'annotated', 'all'", id="enabled without a mode"
    ),
    pytest.param({"config": {"dsr-port": 0}}, "/config/dsr-port", id="no port"),
    pytest.param({"config": {"oom-score-adj": -2000}}, "/config/oom-score-adj", id="too small"),
    pytest.param({"config": {"sync-period": "soon"}}, "/config/sync-period", id="no duration"),
    pytest.param({"hostPID": "yes"}, "got string, want boolean", id="a string for a switch"),
    pytest.param({"healthz": {"port": "10256"}}, "got string, want integer", id="a string port"),
    pytest.param({"healthz": {"port": 70000}}, "/healthz/port", id="a port that cannot be"),
    pytest.param({"image": {"pullPolicy": "Sometimes"}}, "/image/pullPolicy", id="bad policy"),
    pytest.param({"image": {"repository": ""}}, "set the name that it has there", id="no image"),
    pytest.param({"image": {"digest": "md5:0"}}, "/image/digest", id="no sha256"),
    pytest.param({"cgroup": {"hostRoot": "sys"}}, "/cgroup/hostRoot", id="a relative path"),
    pytest.param({"k8sServiceHost": "https://a:1"}, "/k8sServiceHost", id="a URL for a host"),
    pytest.param(
        {"securityContext": {"capabilities": ["cap_bpf"]}}, "/securityContext", id="lower case"
    ),
    pytest.param({"serviceSelector": {"a": "b"}}, "/serviceSelector", id="no text"),
    pytest.param({"serviceSelector": "a=b"}, "set metrics.port and healthz.port", id="taken ports"),
    pytest.param(
        {"namespaceSelector": "a=b", "kubeProxy": {"takeover": True}},
        "kubeProxy.takeover removes the rules",
        id="takeover beside kube-proxy",
    ),
    pytest.param(
        {"updateStrategy": {"rollingUpdate": {"maxUnavailable": "0%"}}},
        "/updateStrategy",
        id="no node at a time",
    ),
    pytest.param(
        {"updateStrategy": {"rollingUpdate": {"maxSurge": 1}}}, "'maxSurge' not allowed", id="surge"
    ),
    pytest.param({"commonLabels": {"helm.sh/chart": "a"}}, "/commonLabels", id="the chart's own"),
    pytest.param(
        {"podLabels": {"app.kubernetes.io/component": "a"}}, "/podLabels", id="pod selector labels"
    ),
    pytest.param({"livenessProbe": {"httpGet": {}}}, "'httpGet' not allowed", id="another probe"),
    pytest.param({"extraEnv": [{"value": "a"}]}, "/extraEnv/0", id="a variable without a name"),
    pytest.param({"startupTaint": {"key": "a b"}}, "/startupTaint/key", id="a key with a blank"),
    pytest.param(
        {"relay": {"certificates": {"renewAfterDays": 365}}},
        "/relay/certificates/renewAfterDays",
        id="renewed after its end",
    ),
    pytest.param({"relay": {"replicas": 0}}, "/relay/replicas", id="enabled without a pod"),
    pytest.param(
        {"metrics": {"prometheusRule": {"alerts": {"EbpflbAbsentt": {}}}}},
        "'EbpflbAbsentt' not allowed",
        id="no such alert",
    ),
    pytest.param(
        {
            "metrics": {
                "enabled": True,
                "prometheusRule": {"enabled": True, "alerts": {"EbpflbAbsent": {"threshold": 1}}},
            }
        },
        "alerts.EbpflbAbsent.threshold: this alert has none",
        id="a threshold for an alert without one",
    ),
    pytest.param(
        {"metrics": {"prometheusRule": {"runbookUrl": "docs/runbook.md"}}},
        "/metrics/prometheusRule/runbookUrl",
        id="a link without a URL",
    ),
]


def objects_in(schema: Object, path: str = "") -> Iterator[tuple[str, Object]]:
    """Every schema of an object, by its path."""
    if schema.get("type") == "object":
        yield path or "/", schema
    for name, child in schema.get("properties", {}).items():
        yield from objects_in(child, f"{path}/{name}")
    if isinstance(items := schema.get("items"), dict):
        yield from objects_in(items, f"{path}[]")


def leaves(values: Any, path: str = "") -> Iterator[str]:
    """The paths of all values that are not mappings, and of empty mappings."""
    if isinstance(values, dict) and values:
        for name, child in values.items():
            yield from leaves(child, f"{path}/{name}")
    else:
        yield path


@pytest.mark.parametrize(("values", "said"), WRONG)
def test_a_wrong_value_is_rejected_by_a_message_that_names_it(values: Object, said: str) -> None:
    done = template(values)
    assert done.returncode == 1
    assert said in done.stderr


def test_monitors_without_metrics_are_rejected() -> None:
    done = template({"metrics": {"serviceMonitor": {"enabled": True}}})
    assert done.returncode == 1
    assert "need metrics.enabled: true" in done.stderr


def test_no_object_of_the_schema_takes_unknown_keys_but_labels_and_their_like() -> None:
    objects = list(objects_in(SCHEMA))
    takes_any = [where for where, each in objects if each.get("additionalProperties") is not False]
    assert len(objects) > 20
    assert takes_any
    assert not [where for where in takes_any if not where.endswith(OPEN)]


def test_every_top_level_value_has_a_default() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(SCHEMA["properties"]) == set(defaults)


def test_values_yaml_shows_everything_that_the_schema_knows() -> None:
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    shown = set(leaves(defaults))
    optional = (
        *("/config/", "/tolerations", "/seLinuxOptions/", "/global", "/alerts/"),
        *("/resources/", "/otherResources/", "Probe/", "/affinity/", "/dnsConfig/", "/lifecycle/"),
    )
    for where, schema in objects_in(SCHEMA):
        for name in schema.get("properties", {}):
            path = f"{where.rstrip('/')}/{name}"
            if not any(part in path for part in optional) and "[]" not in path:
                assert any(leaf == path or leaf.startswith(f"{path}/") for leaf in shown), path


def test_the_schema_has_the_options_of_the_agent() -> None:
    assert options.SCHEMA.read_text() == options.chart_schema(), "python -m tests.options"
    assert {option.name for option in OPTIONS} > options.SET_BY_THE_CHART


def test_the_schema_names_every_alert() -> None:
    rule = SCHEMA["properties"]["metrics"]["properties"]["prometheusRule"]["properties"]
    assert list(rule["alerts"]["properties"]) == [each["alert"] for each in alerts()]


def test_everything_at_once_is_accepted() -> None:
    assert template(EVERYTHING).returncode == 0


def test_the_readme_of_the_chart_is_what_schema_and_values_say() -> None:
    text = readme.README.read_text()
    assert text == readme.render(), "python -m tests.chart.readme"
    explained = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(explained) > 70
