# SPDX-License-Identifier: Apache-2.0
"""`helm uninstall` cleans up every node and waits for it."""

from tests.chart.harness.rendering import (
    EVERYTHING,
    Object,
    agent,
    container,
    hook_of,
    left_for_uninstall,
    mounts,
    of_hook,
    of_kind,
    pod_of,
    render,
)

CLEANUP, WAITING = "ebpflb-cleanup", "ebpflb-uninstall"
ACCOUNT = ("ServiceAccount", "Role", "RoleBinding")


def hooks() -> dict[tuple[str, str], dict[str, str]]:
    """The annotations of the objects that helm creates for an uninstallation, by kind and name."""
    return {
        (each["kind"], each["metadata"]["name"]): each["metadata"]["annotations"]
        for each in render(EVERYTHING)
        if hook_of(each) == "post-delete"
    }


def test_what_cleans_up_exists_only_while_helm_uninstalls() -> None:
    accounts = {(kind, name) for kind in ACCOUNT for name in (CLEANUP, WAITING)}
    assert set(hooks()) == {*accounts, ("DaemonSet", CLEANUP), ("Job", CLEANUP)}


def test_helm_removes_the_job_and_the_job_removes_the_rest() -> None:
    """If a hook fails, helm removes the earlier hooks: the pods that still clean up."""
    by_helm = {
        each
        for each, annotations in hooks().items()
        if "hook-succeeded" in annotations["helm.sh/hook-delete-policy"]
    }
    assert by_helm == {("Job", CLEANUP), *((kind, WAITING) for kind in ACCOUNT)}
    job = pod_of(left_for_uninstall(render(), "Job"))
    assert job["serviceAccountName"] == WAITING
    rules = of_hook(render(), "post-delete", "Role", WAITING)["rules"]
    removed = [
        (resource, rule["resourceNames"])
        for rule in rules
        if rule["verbs"] == ["delete"]
        for resource in rule["resources"]
    ]
    kinds = ("daemonsets", "serviceaccounts", "roles", "rolebindings")
    assert removed == [(kind, [CLEANUP]) for kind in kinds]


def test_the_job_may_remove_secrets_that_helm_does_not_know_and_no_others() -> None:
    def secrets(relay: Object) -> list[str]:
        rules = of_hook(render({"relay": relay}), "post-delete", "Role", WAITING)["rules"]
        return [
            name
            for rule in rules
            if rule["resources"] == ["secrets"]
            for name in rule["resourceNames"]
        ]

    made = ["ebpflb-observe", "ebpflb-relay", "ebpflb-relay-agents", "ebpflb-relay-ca"]
    assert secrets({"enabled": True, "certificates": {"certManager": True}}) == made
    assert secrets({"enabled": True}) == []
    assert secrets({"certificates": {"certManager": True}}) == []


def test_the_account_comes_first_and_the_job_that_waits_comes_last() -> None:
    weights = {each: int(found["helm.sh/hook-weight"]) for each, found in hooks().items()}
    accounts = {weight for (kind, _), weight in weights.items() if kind in ACCOUNT}
    assert max(accounts) < weights["DaemonSet", CLEANUP] < weights["Job", CLEANUP]


def test_it_can_be_switched_off() -> None:
    objects = render({"uninstall": {"mode": "none"}})
    assert not [each for each in objects if hook_of(each) == "post-delete"]
    assert WAITING not in {each["metadata"]["name"] for each in objects}
    assert CLEANUP not in {each["metadata"]["name"] for each in objects}


def of_argo(relay: Object | None = None) -> dict[tuple[str, str], Object]:
    """What Argo CD creates when an Application is deleted, by kind and name."""
    values = {"uninstall": {"mode": "argocd"}, "relay": relay or {}}
    return {
        (each["kind"], each["metadata"]["name"]): each
        for each in render(values)
        if hook_of(each) == "PostDelete"
    }


def test_argo_cd_creates_the_same_objects_by_hooks_of_its_own() -> None:
    found = of_argo()
    assert set(found) == set(hooks())
    for each in found.values():
        assert each["metadata"]["annotations"] == {
            "argocd.argoproj.io/hook": "PostDelete",
            "argocd.argoproj.io/hook-delete-policy": "HookSucceeded",
        }
    events = {hook_of(each) for each in render({"uninstall": {"mode": "argocd"}})}
    assert events == {"", "test", "PostDelete"}


def test_argo_cd_waits_for_the_job_and_removes_everything_itself() -> None:
    """It would create again what the Job removes, and wait forever for a node that is down."""
    found = of_argo({"enabled": True, "certificates": {"certManager": True}})
    (wait,) = pod_of(found["Job", CLEANUP])["containers"]
    script, step, *_ = wait["args"]
    assert step == "cleaned"
    compile(script, "cluster_steps.py", "exec")
    removed = {
        resource
        for rule in found["Role", WAITING]["rules"]
        if "delete" in rule["verbs"]
        for resource in rule["resources"]
    }
    assert removed == {"secrets"}
    assert found["DaemonSet", CLEANUP]["spec"]["updateStrategy"] == {"type": "OnDelete"}
    by_helm = left_for_uninstall(render(), "DaemonSet")["spec"]
    assert "updateStrategy" not in by_helm
    cleaning = found["DaemonSet", CLEANUP]["spec"]
    assert cleaning["template"] == by_helm["template"]


def test_each_node_that_had_an_agent_gets_a_pod_that_cleans_up() -> None:
    for values in ({}, EVERYTHING):
        cleaning, served = pod_of(left_for_uninstall(render(values), "DaemonSet")), agent(values)
        for part in ("nodeSelector", "affinity", "tolerations", "hostNetwork", "priorityClassName"):
            assert cleaning[part] == served[part]


def test_a_job_that_waits_does_not_run_on_a_node_that_is_down() -> None:
    jobs = of_kind(render(), "Job")
    assert len(jobs) == 2
    for job in jobs:
        assert pod_of(job)["tolerations"] == [{"operator": "Exists", "effect": "NoSchedule"}]


def test_nodes_without_a_kernel_of_their_own_are_neither_served_nor_waited_for() -> None:
    objects = render()
    daemonsets = [pod_of(each) for each in of_kind(objects, "DaemonSet")]
    assert len(daemonsets) == 4
    for pod in daemonsets:
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        refused = [each for each in term["matchExpressions"] if each["operator"] == "NotIn"]
        assert [(each["key"], each["values"]) for each in refused] == [
            ("eks.amazonaws.com/compute-type", ["fargate"]),
            ("type", ["virtual-kubelet"]),
        ]


def test_it_cleans_up_with_the_agents_rights_and_is_ready_only_afterwards() -> None:
    for values in ({}, {"securityContext": {"privileged": True}}):
        pod = pod_of(left_for_uninstall(render(values), "DaemonSet"))
        (gone, cleanup), (rest,) = pod["initContainers"], pod["containers"]
        own = container(agent(values), "ebpflb")
        assert "ebpflb cleanup" in cleanup["args"][0]
        assert cleanup["securityContext"] == own["securityContext"]
        assert cleanup["image"] == rest["image"] == own["image"]
        assert rest["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "readinessProbe" not in rest
        assert gone["args"][1:] == ["gone", "240", "kube-system", "ebpflb"]
        assert gone["securityContext"] == rest["securityContext"]


def test_it_cleans_up_where_the_agent_pinned() -> None:
    values = {"bpf": {"hostRoot": "/b"}}
    pod = pod_of(left_for_uninstall(render(values), "DaemonSet"))
    found = mounts(pod, "cleanup")["/sys/fs/bpf"]
    assert found["volume"] == mounts(agent(values), "ebpflb")["/sys/fs/bpf"]["volume"]


def test_its_pods_are_not_the_agents() -> None:
    daemonsets = of_kind(render(), "DaemonSet")
    selectors = [each["spec"]["selector"]["matchLabels"] for each in daemonsets]
    for daemonset, selector in zip(daemonsets, selectors, strict=True):
        labels = daemonset["spec"]["template"]["metadata"]["labels"]
        assert [each.items() <= labels.items() for each in selectors].count(True) == 1
        assert selector.items() <= labels.items()


def test_the_job_waits_for_that_daemonset_and_no_longer_than_helm() -> None:
    objects = render({**EVERYTHING, "uninstall": {"timeoutSeconds": 100}}, namespace="network")
    (wait,) = pod_of(left_for_uninstall(objects, "Job"))["containers"]
    script, *arguments = wait["args"]
    name = left_for_uninstall(objects, "DaemonSet")["metadata"]["name"]
    assert arguments == ["clean", "100", "network", name]
    compile(script, "cluster_steps.py", "exec")
    assert wait["env"][0] == {"name": "KUBERNETES_SERVICE_HOST", "value": "2001:db8::10"}
    (usual,) = pod_of(left_for_uninstall(render(), "Job"))["containers"]
    assert int(usual["args"][2]) < 300
