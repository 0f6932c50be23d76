# SPDX-License-Identifier: Apache-2.0
"""The chart as people install it: the values of charts/ebpflb/ci, and what they set."""

import re
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from tests.chart.harness.rendering import (
    CHART,
    EVERYTHING,
    Object,
    agent,
    container,
    helm,
    hook_of,
    installed,
    of_kind,
    pod_of,
    render,
    template,
)

ENVIRONMENTS = {
    path.name.removesuffix("-values.yaml"): yaml.safe_load(path.read_text())
    for path in sorted((CHART / "ci").iterdir())
}
WORKLOADS = ("DaemonSet", "Deployment", "Job")
# What exists once for a cluster.
OF_CLUSTER = {
    *("ClusterRole", "ClusterRoleBinding"),
    *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "APIService"),
    "GatewayClass",
}
# Binds a role of kube-system.
READER = "ebpflb-relay-authentication"


def workloads(objects: list[Object]) -> list[Object]:
    return [each for kind in WORKLOADS for each in of_kind(objects, kind)]


def containers(objects: list[Object]) -> Iterator[Object]:
    for pod in map(pod_of, workloads(objects)):
        yield from (*pod.get("initContainers", ()), *pod["containers"])


def images(objects: list[Object]) -> Iterator[str]:
    return (each["image"] for each in containers(objects))


def uses_of_constraints(objects: list[Object]) -> set[str]:
    """The accounts whose pods OpenShift admits."""
    rule = {
        "apiGroups": ["security.openshift.io"],
        "resources": ["securitycontextconstraints"],
        "resourceNames": ["privileged"],
        "verbs": ["use"],
    }
    roles = {
        (kind.removesuffix("Binding"), each["roleRef"]["name"]): each["subjects"]
        for kind in ("RoleBinding", "ClusterRoleBinding")
        for each in of_kind(objects, kind)
    }
    return {
        subject["name"]
        for kind in ("Role", "ClusterRole")
        for each in of_kind(objects, kind)
        if rule in each["rules"]
        for subject in roles[kind, each["metadata"]["name"]]
    }


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_chart_is_correct_in_each_environment(name: str) -> None:
    given = yaml.safe_dump(ENVIRONMENTS[name])
    done = helm("lint", "--strict", str(CHART), "--values=-", given=given)
    assert done.returncode == 0, done.stdout
    assert installed(render(ENVIRONMENTS[name]), "DaemonSet")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_relay_runs_in_each_environment(name: str) -> None:
    given = ENVIRONMENTS[name]
    objects = render({**given, "relay": {**given.get("relay", {}), "enabled": True}})
    (relay,) = of_kind(objects, "Deployment")
    assert pod_of(relay).get("imagePullSecrets") == agent(given).get("imagePullSecrets")
    assert {*images([relay])} <= {*images(objects)}


def test_there_are_values_for_twelve_environments() -> None:
    assert len(ENVIRONMENTS) == 12


def test_every_container_has_its_image_by_digest_and_the_policy_of_the_values() -> None:
    proxy = "quay.io/brancz/kube-rbac-proxy@sha256:" + "1" * 64
    image = ENVIRONMENTS["air-gap"]["image"]
    metrics = {"enabled": True, "rbacProxy": {"image": proxy}}
    objects = render({**EVERYTHING, "image": image, "metrics": metrics})
    components = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in workloads(objects)
    }
    assert components == {
        *("agent", "relay", "gateway", "cleanup", "uninstall", "test", "test-result")
    }
    assert {*images(objects)} == {f"{image['repository']}@{image['digest']}", proxy}
    assert {each["imagePullPolicy"] for each in containers(objects)} == {"Always"}


def test_the_command_of_the_document_lists_every_image() -> None:
    page = (CHART.parents[1] / "docs/install.md").read_text()
    (script,) = re.findall(r"sed -n '(.*image.*)' \| sort -u", page)
    for name in ("private-registry", "air-gap"):
        text = template(ENVIRONMENTS[name]).stdout
        listed = subprocess.run(
            ["sed", "-n", script], input=text, capture_output=True, text=True, check=True
        )
        assert {*listed.stdout.splitlines()} == {*images(render(ENVIRONMENTS[name]))}


@pytest.mark.parametrize("name", ["private-registry", "air-gap"])
def test_no_image_comes_from_elsewhere(name: str) -> None:
    host = {"private-registry": "registry.example/mirror/", "air-gap": "registry.internal:5000/"}
    found = set(images(render(ENVIRONMENTS[name])))
    assert found
    assert all(image.startswith(host[name]) for image in found)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("docker.io/library/ebpflb", "mirror.example/m/library/ebpflb"),
        ("registry:5000/a/ebpflb", "mirror.example/m/a/ebpflb"),
        ("localhost/ebpflb", "mirror.example/m/ebpflb"),
        ("network/ebpflb", "mirror.example/m/network/ebpflb"),
    ],
)
def test_a_global_registry_replaces_that_of_an_image(image: str, expected: str) -> None:
    values = {
        "global": {"imageRegistry": "mirror.example/m"},
        "image": {"repository": image, "tag": "1"},
    }
    assert container(agent(values), "ebpflb")["image"] == f"{expected}:1"


def test_pull_secrets_of_a_parent_chart_are_added() -> None:
    values = {
        "global": {"imagePullSecrets": [{"name": "of-parent"}]},
        "imagePullSecrets": [{"name": "own"}],
    }
    for pod in map(pod_of, workloads(render(values))):
        assert pod["imagePullSecrets"] == [{"name": "of-parent"}, {"name": "own"}]


def test_gitops_renders_the_same_each_time_and_leaves_nothing_to_hooks_of_helm() -> None:
    values = ENVIRONMENTS["gitops"]
    assert render(values) == render(values)
    assert {hook_of(each) for each in render(values)} == {"", "test", "PostDelete"}


def test_openshift_admits_the_pods_of_all_accounts() -> None:
    objects = render(ENVIRONMENTS["openshift"])
    accounts = {pod_of(each).get("serviceAccountName", "default") for each in workloads(objects)}
    assert accounts == uses_of_constraints(objects)
    assert not uses_of_constraints(render())


def test_given_annotations_are_on_every_object_and_its_own_take_precedence() -> None:
    given = {**EVERYTHING, "commonAnnotations": {"example.org/a": "common", "team": "network"}}
    for each in render(given):
        assert each["metadata"]["annotations"]["team"] == "network", each
    account = installed(render(given), "ServiceAccount")
    assert account["metadata"]["annotations"]["example.org/a"] == "b"


def test_another_namespace_holds_everything_that_belongs_into_one() -> None:
    rendered = render({**EVERYTHING, "namespaceOverride": "elsewhere"})
    objects = [each for each in rendered if each["metadata"]["name"] != READER]
    assert len(objects) == len(rendered) - 1
    for each in objects:
        expected = None if each["kind"] in OF_CLUSTER else "elsewhere"
        assert each["metadata"].get("namespace") == expected, each
        subjects = {one["namespace"] for one in each.get("subjects", ())}
        assert subjects <= {"elsewhere"}
    assert "kube-system" not in yaml.safe_dump(objects)


def test_the_pods_take_dns_and_hosts_from_the_values() -> None:
    pod = agent(ENVIRONMENTS["air-gap"])
    assert pod["dnsPolicy"] == "None"
    assert pod["dnsConfig"] == {"nameservers": ["10.0.0.53"]}
    assert pod["hostAliases"] == [{"ip": "10.0.0.1", "hostnames": ["api.internal"]}]


def test_a_rollout_waits_and_keeps_as_many_revisions_as_asked() -> None:
    spec = installed(render({"minReadySeconds": 30, "revisionHistoryLimit": 2}), "DaemonSet")
    assert spec["spec"]["minReadySeconds"] == 30
    assert spec["spec"]["revisionHistoryLimit"] == 2


def test_hooks_of_the_agents_container_are_passed_on() -> None:
    hooks = {"preStop": {"sleep": {"seconds": 5}}}
    assert container(agent({"lifecycle": hooks}), "ebpflb")["lifecycle"] == hooks


def test_rights_that_somebody_else_grants_are_not_created() -> None:
    kinds = {each["kind"] for each in render({"rbac": {"create": False}})}
    assert not {kind for kind in kinds if "Role" in kind}
    own = {"create": False, "name": "proxy"}
    objects = render({"serviceAccount": own})
    assert pod_of(installed(objects, "DaemonSet"))["serviceAccountName"] == "proxy"
    assert "proxy" not in {each["metadata"]["name"] for each in of_kind(objects, "ServiceAccount")}
    refused = template({"serviceAccount": {"create": False}})
    assert "name the account of the agents in serviceAccount.name" in refused.stderr


def test_other_objects_are_installed_with_their_templates_rendered() -> None:
    made: Object = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "{{ .Release.Name }}-extra"},
    }
    (found,) = of_kind(render({"extraObjects": [made, made | {"kind": "Pod"}]}), "Secret")
    assert found["metadata"]["name"] == "ebpflb-extra"
