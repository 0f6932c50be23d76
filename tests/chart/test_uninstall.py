# SPDX-License-Identifier: Apache-2.0
"""`helm uninstall` cleans up every node and waits for it."""

from tests.chart.harness.rendering import (
    EVERYTHING,
    agent,
    container,
    hook_of,
    left_for_uninstall,
    mounts,
    of_kind,
    pod_of,
    render,
)

KINDS = ("ServiceAccount", "Role", "RoleBinding", "DaemonSet", "Job")


def weight(kind: str) -> int:
    annotations = left_for_uninstall(render(), kind)["metadata"]["annotations"]
    return int(annotations["helm.sh/hook-weight"])


def test_what_cleans_up_exists_only_while_helm_uninstalls() -> None:
    hooks = [each for each in render(EVERYTHING) if hook_of(each) == "post-delete"]
    assert sorted(each["kind"] for each in hooks) == sorted(KINDS)
    policies = {each["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for each in hooks}
    assert policies == {"before-hook-creation,hook-succeeded"}


def test_the_account_comes_first_and_the_job_that_waits_comes_last() -> None:
    assert weight("ServiceAccount") == weight("Role") == weight("RoleBinding") < weight("DaemonSet")
    assert weight("DaemonSet") < weight("Job")


def test_it_can_be_switched_off() -> None:
    objects = render({"uninstall": {"cleanup": False}})
    assert not [each for each in objects if hook_of(each) == "post-delete"]


def test_each_node_that_had_an_agent_gets_a_pod_that_cleans_up() -> None:
    for values in ({}, EVERYTHING):
        cleaning, served = pod_of(left_for_uninstall(render(values), "DaemonSet")), agent(values)
        for part in ("nodeSelector", "affinity", "tolerations", "hostNetwork", "priorityClassName"):
            assert cleaning[part] == served[part]


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
        assert gone["args"][1:4] == ["gone", "kube-system", "ebpflb"]
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
    assert arguments == ["clean", "network", name, "100"]
    compile(script, "await_cleanup.py", "exec")
    assert wait["env"][0] == {"name": "KUBERNETES_SERVICE_HOST", "value": "2001:db8::10"}
    (usual,) = pod_of(left_for_uninstall(render(), "Job"))["containers"]
    assert int(usual["args"][-1]) < 300
