# SPDX-License-Identifier: Apache-2.0
"""What the accounts of the chart may do in the API: exactly this."""

from tests.chart.harness.rendering import (
    EVERYTHING,
    Object,
    agent,
    installed,
    left_for_uninstall,
    of_kind,
    pod_of,
    render,
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
    for values in ({}, EVERYTHING):
        assert rights(installed(render(values), "ClusterRole")) == {
            ("", "nodes"): READ,
            ("", "services"): READ,
            ("", "pods"): {"get", *READ},
            ("", "namespaces"): READ,
            ("discovery.k8s.io", "endpointslices"): READ,
            ("networking.k8s.io", "servicecidrs"): READ,
            ("events.k8s.io", "events"): {"create"},
        }


def test_the_agent_has_no_other_role() -> None:
    roles = [each for kind in ("Role", "ClusterRole") for each in of_kind(render(EVERYTHING), kind)]
    assert [each["metadata"]["name"] for each in roles] == ["ebpflb-cleanup", "ebpflb"]


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


def test_an_uninstallation_reads_two_daemonsets_and_the_pods_of_their_namespace() -> None:
    objects = render()
    role = left_for_uninstall(objects, "Role")
    assert rights(role) == {("apps", "daemonsets"): {"get"}, ("", "pods"): {"list"}}
    assert role["rules"][0]["resourceNames"] == ["ebpflb", "ebpflb-cleanup"]
    binding = left_for_uninstall(objects, "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    for kind in ("Job", "DaemonSet"):
        pod = pod_of(left_for_uninstall(objects, kind))
        assert pod["serviceAccountName"] == binding["subjects"][0]["name"]


def test_pods_that_need_no_api_get_no_token() -> None:
    objects = render()
    pods = [each["spec"] for each in of_kind(objects, "Pod")]
    assert len(pods) == 2
    assert all(pod["automountServiceAccountToken"] is False for pod in pods)
