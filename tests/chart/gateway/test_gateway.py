# SPDX-License-Identifier: Apache-2.0
"""The Gateway controller in the chart: off by default, few rights, no more than it is told."""

import json

import pytest

from tests.chart.harness.pod_security import refused
from tests.chart.harness.rendering import (
    EVERYTHING,
    Object,
    agent,
    component_of,
    container,
    of_kind,
    pod_of,
    render,
    template,
)

GATEWAY: Object = {"gateway": {"enabled": True}}
OPENSHIFT: Object = {**GATEWAY, "openshift": {"enabled": True}}
IMPORTS: Object = {"multicluster": {"enabled": True}}
GROUP = "gateway.networking.k8s.io"
MULTICLUSTER = "multicluster.x-k8s.io"
READ = {"list", "watch"}
WRITE = {*READ, "create", "patch", "delete"}


def of_gateway(values: Object, kind: str, **options: str) -> Object:
    """Its only object of this kind."""
    objects = of_kind(render(values, **options), kind)
    (found,) = [each for each in objects if component_of(each) == "gateway"]
    return found


def rights(role: Object) -> dict[tuple[str, str], set[str]]:
    """(API group, resource) -> verbs."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_by_default_nothing_of_it_is_there() -> None:
    assert "gateway" not in json.dumps(render())


def test_it_may_tell_of_what_it_serves_and_write_services_and_endpoints() -> None:
    of_group = ("gatewayclasses", "gateways", "tcproutes", "udproutes")
    of_gateways = {
        **{(GROUP, each): READ for each in (*of_group, "referencegrants")},
        **{(GROUP, f"{each}/status"): {"patch"} for each in of_group},
        ("", "namespaces"): READ,
        ("", "nodes"): READ,
    }
    of_imports = {
        (MULTICLUSTER, "serviceimports"): {*READ, "patch"},
        (MULTICLUSTER, "serviceimports/status"): {"patch"},
    }
    made = {("", "services"): WRITE, ("discovery.k8s.io", "endpointslices"): WRITE}
    assert rights(of_gateway(GATEWAY, "ClusterRole")) == of_gateways | made
    assert rights(of_gateway(IMPORTS, "ClusterRole")) == of_imports | made
    assert rights(of_gateway(EVERYTHING, "ClusterRole")) == of_gateways | of_imports | made


def test_of_leases_it_may_change_its_own() -> None:
    create, change = of_gateway(GATEWAY, "Role")["rules"]
    assert create["verbs"] == ["create"]
    assert change["verbs"] == ["get", "patch"]
    assert change["resourceNames"] == ["ebpflb-gateway"]
    assert rights({"rules": [create]}).keys() == {("coordination.k8s.io", "leases")}


def test_its_roles_are_bound_to_its_account() -> None:
    account = {"kind": "ServiceAccount", "name": "lb-ebpflb-gateway", "namespace": "network"}
    for kind in ("Role", "ClusterRole"):
        binding = of_gateway(GATEWAY, f"{kind}Binding", namespace="network", release="lb")
        role = of_gateway(GATEWAY, kind, namespace="network", release="lb")
        assert binding["subjects"] == [account]
        assert binding["roleRef"]["kind"] == kind
        assert binding["roleRef"]["name"] == role["metadata"]["name"]
    deployment = of_gateway(GATEWAY, "Deployment", namespace="network", release="lb")
    assert pod_of(deployment)["serviceAccountName"] == account["name"]
    own = of_gateway(GATEWAY, "ServiceAccount", namespace="network", release="lb")
    assert own["metadata"]["name"] == account["name"]


def test_roles_that_somebody_else_makes_are_left_out() -> None:
    objects = render({**GATEWAY, "rbac": {"create": False}})
    mine = [each["kind"] for each in objects if component_of(each) == "gateway"]
    assert sorted(mine) == ["Deployment", "GatewayClass", "ServiceAccount"]


@pytest.mark.parametrize("values", [GATEWAY, IMPORTS, EVERYTHING, OPENSHIFT])
def test_a_namespace_for_restricted_pods_admits_it(values: Object) -> None:
    pod = pod_of(of_gateway(values, "Deployment"))
    assert refused(pod) == []
    assert container(pod, "gateway")["securityContext"]["readOnlyRootFilesystem"] is True
    assert not pod.get("volumes")


def test_openshift_chooses_the_user() -> None:
    pod = pod_of(of_gateway(OPENSHIFT, "Deployment"))
    assert "runAsUser" not in container(pod, "gateway")["securityContext"]


def test_it_runs_the_image_of_the_agents_with_what_it_is_told() -> None:
    deployment = of_gateway(EVERYTHING, "Deployment", namespace="network")
    pod = pod_of(deployment)
    found = container(pod, "gateway")
    assert found["image"] == container(agent(EVERYTHING), "ebpflb")["image"]
    assert found["args"] == [
        *("gateway", "--namespace=network", "--api=gateway", "--api=multicluster"),
        *("--address-range=203.0.113.0/24", "--address-range=2001:db8::/64"),
    ]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "system"}
    assert pod["tolerations"] == [{"key": "system", "operator": "Exists"}]
    assert pod["priorityClassName"] == "system-cluster-critical"
    assert deployment["spec"]["replicas"] == 2
    plain = pod_of(of_gateway(GATEWAY, "Deployment"))
    assert "--api=multicluster" not in container(plain, "gateway")["args"]
    assert "priorityClassName" not in plain
    assert "tolerations" not in plain


def test_the_class_names_the_controller() -> None:
    found = of_gateway(GATEWAY, "GatewayClass")
    assert found["metadata"]["name"] == "ebpflb"
    assert found["spec"] == {"controllerName": "ebpflb.io/ebpflb"}


def test_with_service_imports_alone_nothing_of_gateway_api_is_there() -> None:
    objects = render(IMPORTS)
    mine = [each["kind"] for each in objects if component_of(each) == "gateway"]
    account = ["Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding", "ServiceAccount"]
    assert sorted(mine) == sorted(["Deployment", *account])
    assert GROUP not in json.dumps(objects)
    found = container(pod_of(of_gateway(IMPORTS, "Deployment")), "gateway")
    assert found["args"] == ["gateway", "--namespace=kube-system", "--api=multicluster"]


def test_no_pods_and_no_text_are_refused() -> None:
    wrongs: list[Object] = [{"replicas": 0}, {"addressRanges": "203.0.113.0/24"}, {"address": []}]
    for wrong in wrongs:
        assert template({"gateway": {"enabled": True, **wrong}}).returncode
    assert template({"multicluster": {"enabled": "yes"}}).returncode
