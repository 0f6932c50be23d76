# SPDX-License-Identifier: Apache-2.0
"""The rights of the chart's accounts in the API: exactly these."""

import pytest

from tests.chart.harness.rendering import (
    EVERYTHING,
    Object,
    agent,
    component_of,
    hook_of,
    installed,
    of_hook,
    of_kind,
    pod_of,
    render,
    template,
)

READ = frozenset({"list", "watch"})


def rights(role: Object) -> dict[tuple[str, str], frozenset[str]]:
    """(API group, resource) -> verbs."""
    return {
        (group, resource): frozenset(rule["verbs"])
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def test_the_agent_reads_what_it_serves_and_writes_nothing_but_events() -> None:
    for values in ({}, {**EVERYTHING, "startupTaint": {}}):
        assert rights(installed(render(values), "ClusterRole")) == {
            ("", "nodes"): READ,
            ("", "services"): READ,
            ("", "pods"): {"get", *READ},
            ("", "namespaces"): READ,
            ("discovery.k8s.io", "endpointslices"): READ,
            ("networking.k8s.io", "servicecidrs"): READ,
            ("events.k8s.io", "events"): {"create"},
        }


@pytest.mark.parametrize(
    ("option", "right"), [("watch-pods", ("", "pods")), ("events", ("events.k8s.io", "events"))]
)
def test_a_right_goes_with_the_option_that_needs_it(option: str, right: tuple[str, str]) -> None:
    with_it = rights(installed(render({"config": {option: True}}), "ClusterRole"))
    without = rights(installed(render({"config": {option: False}}), "ClusterRole"))
    assert with_it.keys() - without.keys() == {right}


def test_nodes_may_be_patched_only_for_the_startup_taint() -> None:
    assert not of_kind(render(), "ValidatingAdmissionPolicy")
    role = installed(render({"startupTaint": {"enabled": True}}), "ClusterRole")
    (added,) = [rule for rule in role["rules"] if "patch" in rule["verbs"]]
    assert added == {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "patch"]}


def test_a_policy_leaves_of_that_right_the_own_node_and_its_taint() -> None:
    values = {"startupTaint": {"enabled": True, "key": "a/b"}, "serviceAccount": {"name": "proxy"}}
    objects = render(values, namespace="network")
    policy = installed(objects, "ValidatingAdmissionPolicy")
    binding = installed(objects, "ValidatingAdmissionPolicyBinding")["spec"]
    assert binding == {"policyName": policy["metadata"]["name"], "validationActions": ["Deny"]}
    (condition,) = policy["spec"]["matchConditions"]
    assert '"system:serviceaccount:network:proxy"' in condition["expression"]
    assert any('taint.key != "a/b"' in each["expression"] for each in policy["spec"]["validations"])


def test_without_that_policy_the_right_has_to_be_asked_for() -> None:
    asked: Object = {"startupTaint": {"enabled": True}}
    refused = template(asked, kubernetes="1.31.0")
    assert refused.returncode
    assert "set startupTaint.withoutPolicy=true if you accept that" in refused.stderr
    asked["startupTaint"]["withoutPolicy"] = True
    objects = render(asked, kubernetes="1.31.0")
    assert not of_kind(objects, "ValidatingAdmissionPolicy")
    assert "patch" in rights(installed(objects, "ClusterRole"))["", "nodes"]


def test_the_agent_has_no_other_role() -> None:
    roles = [each for kind in ("Role", "ClusterRole") for each in of_kind(render(EVERYTHING), kind)]
    roles = [each for each in roles if component_of(each) not in ("relay", "gateway")]
    names = ["ebpflb-cleanup", "ebpflb-test", "ebpflb-uninstall", "ebpflb"]
    assert sorted(each["metadata"]["name"] for each in roles) == sorted(names)


def test_the_role_is_bound_to_the_account_of_the_agents_pods() -> None:
    for values, name in (({}, "ebpflb"), (EVERYTHING, "proxy")):
        objects = render(values, namespace="network")
        binding = installed(objects, "ClusterRoleBinding")
        account = installed(objects, "ServiceAccount")["metadata"]
        role = installed(objects, "ClusterRole")["metadata"]["name"]
        assert binding["subjects"] == [
            {"kind": "ServiceAccount", "name": name, "namespace": "network"}
        ]
        assert binding["roleRef"]["name"] == role
        assert (account["name"], account["namespace"]) == (name, "network")
        assert agent(values, namespace="network")["serviceAccountName"] == name


def test_a_pod_that_cleans_up_reads_whether_the_agents_are_gone_and_nothing_else() -> None:
    role = of_hook(render(), "post-delete", "Role", "ebpflb-cleanup")
    assert rights(role) == {("apps", "daemonsets"): {"get"}}
    assert role["rules"][0]["resourceNames"] == ["ebpflb"]


def test_what_waits_for_pods_reads_its_own_daemonsets_and_lists_pods() -> None:
    for hook, name, daemonsets in (
        ("post-delete", "ebpflb-uninstall", ["ebpflb-cleanup"]),
        ("test", "ebpflb-test", ["ebpflb-test-pod", "ebpflb-test-node"]),
    ):
        role = of_hook(render(), hook, "Role", name)
        read = {"rules": [rule for rule in role["rules"] if rule["verbs"] != ["delete"]]}
        assert rights(read) == {("apps", "daemonsets"): {"get"}, ("", "pods"): {"list"}}
        assert role["rules"][0]["resourceNames"] == daemonsets


def test_accounts_of_hooks_are_bound_to_their_roles_and_used() -> None:
    objects = render(namespace="network")
    users = {
        pod_of(each).get("serviceAccountName")
        for kind in ("Job", "DaemonSet")
        for each in of_kind(objects, kind)
    }
    bindings = of_kind(objects, "RoleBinding")
    assert {each["subjects"][0]["name"] for each in bindings} == users - {"ebpflb", None}
    for each in bindings:
        assert each["roleRef"]["name"] == each["subjects"][0]["name"] == each["metadata"]["name"]
        assert each["subjects"][0]["namespace"] == "network"


def test_pods_that_need_no_api_get_no_token() -> None:
    tests = [each for each in of_kind(render(), "DaemonSet") if hook_of(each) == "test"]
    assert len(tests) == 2
    assert all(pod_of(each)["automountServiceAccountToken"] is False for each in tests)
