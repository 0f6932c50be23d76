# SPDX-License-Identifier: Apache-2.0
"""The pods of the relay and of the agents that it asks: what they run, see and are selected by."""

import json

import pytest
import yaml

from tests.chart.harness.pod_security import refused
from tests.chart.harness.relay import ISSUED, RELAY, of_relay
from tests.chart.harness.rendering import (
    CHART,
    EVERYTHING,
    Object,
    agent,
    container,
    hook_of,
    installed,
    mounts,
    of_kind,
    pod_of,
    render,
    settings_file,
)

OPENSHIFT: Object = {**RELAY, "openshift": {"enabled": True}}


def deployment(values: Object) -> Object:
    (found,) = of_relay(render(values), "Deployment").values()
    return found


def relay(values: Object) -> Object:
    """The specification of its pods."""
    return pod_of(deployment(values))


def test_by_default_nothing_of_it_is_there() -> None:
    for values in ({}, {"relay": {"certificates": {"certManager": True}}}):
        text = json.dumps(render(values))
        assert not [word for word in ("relay", "observe-", "observe.", "10260") if word in text]


@pytest.mark.parametrize("values", [RELAY, ISSUED, EVERYTHING, OPENSHIFT])
def test_a_namespace_for_restricted_pods_admits_it(values: Object) -> None:
    pod = relay(values)
    assert refused(pod) == []
    assert container(pod, "relay")["securityContext"]["readOnlyRootFilesystem"] is True
    assert all(each["readOnly"] for each in mounts(pod, "relay").values())
    assert {"hostNetwork", "add", "hostPath", "runAsNonRoot"} <= set(refused(agent(values)))


def test_it_reads_its_keys_as_another_user_than_root() -> None:
    pod = relay(RELAY)
    assert container(pod, "relay")["securityContext"]["runAsUser"] == 65534
    assert pod["securityContext"] == {"fsGroup": 65534}
    modes = [each["secret"]["defaultMode"] for each in pod["volumes"]]
    assert modes == [0o400, 0o400]


def test_openshift_chooses_the_user_and_no_constraint_has_to_be_granted() -> None:
    objects = render(OPENSHIFT)
    pod = relay(OPENSHIFT)
    assert not [name for name in ("runAsUser", "fsGroup") if name in json.dumps(pod)]
    roles = [*of_relay(objects, "ClusterRole").values(), *of_relay(objects, "Role").values()]
    assert len(roles) == 4
    assert "securitycontextconstraints" not in json.dumps(roles)


def test_it_runs_the_image_of_the_agents() -> None:
    given = {
        **RELAY,
        "global": {"imageRegistry": "mirror.example/m", "imagePullSecrets": [{"name": "a"}]},
        "imagePullSecrets": [{"name": "b"}],
        "image": {"pullPolicy": "Always"},
    }
    pod, other = relay(given), agent(given)
    for name in ("image", "imagePullPolicy"):
        assert container(pod, "relay")[name] == container(other, "ebpflb")[name]
    assert container(pod, "relay")["image"].startswith("mirror.example/m/")
    assert pod["imagePullSecrets"] == [{"name": "a"}, {"name": "b"}]
    assert "imagePullSecrets" not in relay(RELAY)


def test_it_is_told_where_agents_are_and_listens_where_the_api_server_asks() -> None:
    values = {"relay": {"enabled": True, "agentPort": 20260}, "namespaceOverride": "network"}
    objects = render(values)
    (found,), (service,) = (of_relay(objects, kind).values() for kind in ("Deployment", "Service"))
    one = container(pod_of(found), "relay")
    assert one["args"] == [
        *("relay", "--bind-address=:8443", "--tls-directory=/etc/ebpflb/tls"),
        *("--agent-tls-directory=/etc/ebpflb/agent-tls", "--agent-port=20260"),
        "--agent-namespace=network",
    ]
    assert one["ports"] == [{"name": "https", "containerPort": 8443}]
    assert service["spec"]["ports"] == [{"name": "https", "port": 443, "targetPort": "https"}]
    probes = {name: one[name]["httpGet"] for name in ("livenessProbe", "readinessProbe")}
    assert probes == {
        "livenessProbe": {"path": "/livez", "port": "https", "scheme": "HTTPS"},
        "readinessProbe": {"path": "/readyz", "port": "https", "scheme": "HTTPS"},
    }


def test_the_api_serves_what_the_relay_answers() -> None:
    objects = render(RELAY, namespace="network")
    ((name, api),) = of_relay(objects, "APIService").items()
    (service,) = of_relay(objects, "Service").values()
    spec = api["spec"]
    assert name == f"{spec['version']}.{spec['group']}" == "v1alpha1.observe.ebpflb.io"
    metadata = service["metadata"]
    wanted = {"name": metadata["name"], "namespace": metadata["namespace"], "port": 443}
    assert spec["service"] == wanted
    assert "insecureSkipTLSVerify" not in spec
    assert (spec["groupPriorityMinimum"], spec["versionPriority"]) == (1000, 15)


def test_agents_answer_at_its_port_once_they_have_a_certificate() -> None:
    values = {"relay": {"enabled": True, "agentPort": 20260}}
    settings = yaml.safe_load(settings_file(render(values)))
    assert settings["observe-bind-address"] == ":20260"
    directory = mounts(agent(values), "ebpflb")[settings["observe-tls-directory"]]
    assert directory["volume"]["secret"]["optional"] is True
    assert "subPath" not in directory
    port = {"name": "observe", "containerPort": 20260}
    assert port in container(agent(values), "ebpflb")["ports"]
    assert not [each for each in yaml.safe_load(settings_file(render())) if "observe" in each]


def test_addresses_of_the_api_reach_it_as_they_reach_the_agents() -> None:
    hosts = ["192.0.2.1", "192.0.2.2"]
    own, others = (
        {each["name"]: each.get("value") for each in container(pod, name).get("env", [])}
        for pod, name in (
            (relay({**RELAY, "k8sServiceHost": hosts}), "relay"),
            (agent({"k8sServiceHost": hosts}), "ebpflb"),
        )
    )
    assert own == {"EBPFLB_API_SERVERS": others["EBPFLB_API_SERVERS"]}
    assert "env" not in container(relay({**RELAY, "k8sServiceHost": hosts[:1]}), "relay")


def test_its_pods_run_where_the_values_say() -> None:
    found = deployment(EVERYTHING)
    pod = pod_of(found)
    assert found["spec"]["replicas"] == 3
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "system"}
    assert pod["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert not {"tolerations", "priorityClassName"} & relay(RELAY).keys()
    affinity: Object = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}
    assert relay({"relay": {"enabled": True, "affinity": affinity}})["affinity"] == affinity


def test_its_pods_avoid_each_other_and_go_one_at_a_time() -> None:
    found = deployment(RELAY)
    (term,) = pod_of(found)["affinity"]["podAntiAffinity"][
        "preferredDuringSchedulingIgnoredDuringExecution"
    ]
    apart = term["podAffinityTerm"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    assert apart["labelSelector"] == found["spec"]["selector"]
    assert found["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 1}


def test_every_selector_chooses_pods_of_one_component() -> None:
    objects = render(EVERYTHING)
    workloads = [
        each for kind in ("DaemonSet", "Deployment", "Job") for each in of_kind(objects, kind)
    ]
    labels = {
        (each["kind"], each["metadata"]["name"]): each["spec"]["template"]["metadata"]["labels"]
        for each in workloads
    }
    selectors = {
        key: each["spec"]["selector"]["matchLabels"]
        for key, each in zip(labels, workloads, strict=True)
        if "selector" in each["spec"]
    }
    for service in of_kind(objects, "Service"):
        selectors["Service", service["metadata"]["name"]] = service["spec"]["selector"]
    selectors["PodMonitor", "ebpflb"] = installed(objects, "PodMonitor")["spec"]["selector"][
        "matchLabels"
    ]
    chosen = {
        name: [other for other, found in labels.items() if selector.items() <= found.items()]
        for name, selector in selectors.items()
    }
    agents, relays = ("DaemonSet", "ebpflb"), ("Deployment", "ebpflb-relay")
    assert (
        chosen.pop(("Service", "ebpflb-metrics"))
        == chosen.pop(("PodMonitor", "ebpflb"))
        == [agents]
    )
    assert chosen.pop(("Service", "ebpflb-relay")) == [relays]
    assert {agents, relays} <= chosen.keys()
    assert chosen == {name: [name] for name in chosen}


def test_everything_of_it_goes_with_the_release() -> None:
    """What helm makes outside of hooks, helm removes."""
    for values in (RELAY, ISSUED):
        before = {(each["kind"], each["metadata"]["name"]) for each in render()}
        added = [
            each
            for each in render(values)
            if (each["kind"], each["metadata"]["name"]) not in before
        ]
        assert len(added) > 10
        for each in added:
            assert not hook_of(each)
            assert "helm.sh/resource-policy" not in each["metadata"].get("annotations", {})


@pytest.mark.parametrize("name", ["strict-pod-security", "gitops"])
def test_environments_that_forbid_commands_in_pods_have_it(name: str) -> None:
    values = yaml.safe_load((CHART / "ci" / f"{name}-values.yaml").read_text())
    assert refused(relay(values)) == []
