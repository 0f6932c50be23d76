# SPDX-License-Identifier: Apache-2.0
"""The rights of the relay, and those of the people who ask it: exactly these."""

from tests.chart.harness.relay import RELAY, of_relay
from tests.chart.harness.rendering import EVERYTHING, Object, hook_of, pod_of, render

GROUP = "observe.ebpflb.io"
AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"


def rights(role: Object) -> dict[tuple[str, str], set[str]]:
    """(API group, resource) -> verbs."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        assert set(rule) == {"apiGroups", "resources", "verbs"}
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_it_reads_what_decides_who_may_see_a_record_and_changes_nothing() -> None:
    for values in (RELAY, EVERYTHING):
        assert rights(of_relay(render(values), "ClusterRole")["ebpflb-relay"]) == {
            ("", "pods"): {"get", "list"},
            ("", "services"): {"get", "list"},
            ("", "nodes"): {"list"},
            ("authorization.k8s.io", "subjectaccessreviews"): {"create"},
        }


def test_it_finds_the_agents_in_their_namespace() -> None:
    (role,) = of_relay(render(RELAY, namespace="network"), "Role").values()
    assert role["metadata"]["namespace"] == "network"
    assert rights(role) == {("apps", "daemonsets"): {"list"}, ("", "pods"): {"list"}}


def test_its_roles_are_bound_to_its_account_and_to_no_other() -> None:
    objects = render({**EVERYTHING, "namespaceOverride": "elsewhere"})
    bindings = [
        (each, kind)
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for each in of_relay(objects, kind).values()
    ]
    account = {"kind": "ServiceAccount", "name": "ebpflb-relay", "namespace": "elsewhere"}
    assert all(each["subjects"] == [account] for each, _ in bindings)
    bound = {
        (kind, each["metadata"].get("namespace"), each["roleRef"]["kind"], each["roleRef"]["name"])
        for each, kind in bindings
    }
    assert bound == {
        ("ClusterRoleBinding", None, "ClusterRole", "ebpflb-relay"),
        ("RoleBinding", "elsewhere", "Role", "ebpflb-relay"),
        ("RoleBinding", "kube-system", "Role", "extension-apiserver-authentication-reader"),
    }
    (deployment,) = of_relay(objects, "Deployment").values()
    assert pod_of(deployment)["serviceAccountName"] == account["name"]
    (own,) = of_relay(objects, "ServiceAccount").values()
    assert (own["metadata"]["name"], own["metadata"]["namespace"]) == ("ebpflb-relay", "elsewhere")


def test_who_may_view_a_namespace_may_ask_about_it() -> None:
    role = of_relay(render(RELAY), "ClusterRole")["ebpflb-view"]
    added = {name: value for name, value in role["metadata"]["labels"].items() if "rbac" in name}
    assert added == {f"{AGGREGATE}{name}": "true" for name in ("view", "edit", "admin")}
    asked = ("flows", "frontends", "rates", "connections", "explanations")
    assert rights(role) == {(GROUP, name): {"get", "list", "watch"} for name in asked}


def test_the_whole_cluster_is_for_those_whom_somebody_names() -> None:
    objects = render(RELAY)
    role = of_relay(objects, "ClusterRole")["ebpflb-cluster-view"]
    assert rights(role) == {(GROUP, "*"): {"get", "list", "watch"}}
    assert not [name for name in role["metadata"]["labels"] if name.startswith(AGGREGATE)]
    bound = [
        each["roleRef"]["name"]
        for kind in ("ClusterRoleBinding", "RoleBinding")
        for each in of_relay(objects, kind).values()
    ]
    assert role["metadata"]["name"] not in bound


def test_roles_that_somebody_else_makes_are_left_out() -> None:
    objects = render({**RELAY, "rbac": {"create": False}})
    assert not [each for each in objects if "Role" in each["kind"]]
    assert of_relay(objects, "ServiceAccount")


def test_an_account_that_is_there_is_that_of_the_agents_alone() -> None:
    own = {"create": False, "name": "proxy"}
    objects = render({**RELAY, "serviceAccount": own})
    accounts = [each for each in objects if each["kind"] == "ServiceAccount" and not hook_of(each)]
    assert [each["metadata"]["name"] for each in accounts] == ["ebpflb-relay"]
