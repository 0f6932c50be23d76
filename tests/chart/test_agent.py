# SPDX-License-Identifier: Apache-2.0
"""The agent's pods: their rights, their view of the node, and their probes."""

import pytest
import yaml

from ebpflb.dataplane.load.compile_cache import DIRECTORY
from tests.chart.harness.rendering import (
    CHART,
    EVERYTHING,
    IMAGE,
    Object,
    agent,
    container,
    helm,
    installed,
    mounts,
    pod_of,
    render,
    settings_file,
)

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def variables(pod: Object, name: str = "ebpflb") -> dict[str, object]:
    listed = container(pod, name)["env"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in listed}


def host_paths(seen: dict[str, Object]) -> dict[str, str]:
    """Path in the container -> path on the node."""
    volumes = {path: mount["volume"] for path, mount in seen.items()}
    return {
        path: volume["hostPath"]["path"] for path, volume in volumes.items() if "hostPath" in volume
    }


def annotations(values: Object | None = None) -> dict[str, str]:
    daemonset = installed(render(values), "DaemonSet")
    found: dict[str, str] = daemonset["spec"]["template"]["metadata"]["annotations"]
    return found


def checksum(values: Object) -> str:
    return annotations(values)["checksum/config"]


def test_exec_and_logs_mean_the_agent_unless_the_user_says_otherwise() -> None:
    name = "kubectl.kubernetes.io/default-container"
    assert annotations()[name] == "ebpflb"
    assert annotations({"podAnnotations": {name: "proxy", "a": "b"}}).items() >= {
        (name, "proxy"),
        ("a", "b"),
    }


def test_helm_lint_finds_nothing() -> None:
    for values in ({}, EVERYTHING):
        done = helm(
            "lint",
            "--strict",
            str(CHART),
            "--values=-",
            given=yaml.safe_dump({"image": IMAGE, **values}),
        )
        assert done.returncode == 0, done.stdout


def test_it_runs_on_the_network_of_every_linux_node_before_other_pods() -> None:
    pod = agent()
    assert pod["hostNetwork"] is True
    assert pod["hostPID"] is False
    assert pod["dnsPolicy"] == "Default"
    assert pod["priorityClassName"] == "system-node-critical"
    assert pod["tolerations"] == [{"operator": "Exists"}]
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux"}
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == ["amd64", "arm64"]


def test_it_has_four_capabilities_and_a_read_only_root() -> None:
    context = container(agent(), "ebpflb")["securityContext"]
    assert context["capabilities"] == {
        "drop": ["ALL"],
        "add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN", "SYS_RESOURCE"],
    }
    assert context["readOnlyRootFilesystem"] is True
    assert "privileged" not in context
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert context["appArmorProfile"] == {"type": "Unconfined"}


def test_privileged_replaces_the_list_of_capabilities() -> None:
    context = container(agent({"securityContext": {"privileged": True}}), "ebpflb")[
        "securityContext"
    ]
    assert context["privileged"] is True
    assert not {"capabilities", "seccompProfile", "appArmorProfile"} & context.keys()
    assert context["readOnlyRootFilesystem"] is True


def test_app_armor_is_an_annotation_before_kubernetes_1_30() -> None:
    daemonset = installed(render(kubernetes="1.29.4"), "DaemonSet")
    found = daemonset["spec"]["template"]["metadata"]["annotations"]
    name = "container.apparmor.security.beta.kubernetes.io/"
    assert found[f"{name}ebpflb"] == "unconfined"
    assert f"{name}takeover" not in found
    beside = render({"kubeProxy": {"takeover": True}}, kubernetes="1.29.4")
    found = installed(beside, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]
    assert found[f"{name}takeover"] == "unconfined"
    assert "appArmorProfile" not in container(pod_of(daemonset), "ebpflb")["securityContext"]


def test_it_sees_the_nodes_bpffs_cgroups_and_namespaces_and_nothing_else() -> None:
    seen = mounts(agent(), "ebpflb")
    host = host_paths(seen)
    assert host == {
        "/sys/fs/bpf": "/sys/fs/bpf",
        "/run/ebpflb/cgroup": "/sys/fs/cgroup",
        "/run/netns": "/run/netns",
    }
    others = {"/tmp", "/run/ebpflb", "/var/cache", "/etc/ebpflb/config.yaml"}  # noqa: S108  a mount
    assert set(seen) - set(host) == others
    assert seen["/run/netns"]["mountPropagation"] == "HostToContainer"
    assert seen["/run/ebpflb/cgroup"]["readOnly"] is True
    assert not seen["/sys/fs/bpf"].get("readOnly")


def test_what_was_compiled_outlives_a_reboot() -> None:
    place = mounts(agent(), "ebpflb")[str(DIRECTORY.parent)]
    assert place["volume"]["emptyDir"] == {}
    assert not place.get("readOnly")


def test_the_places_on_the_node_can_be_moved() -> None:
    values = {"bpf": {"hostRoot": "/b"}, "cgroup": {"hostRoot": "/c"}, "netns": {"hostRoot": "/n"}}
    assert host_paths(mounts(agent(values), "ebpflb")) == {
        "/sys/fs/bpf": "/b",
        "/run/ebpflb/cgroup": "/c",
        "/run/netns": "/n",
    }


def test_a_missing_bpffs_stops_the_pod_and_is_mounted_only_on_request() -> None:
    check, mount = (
        container(agent({"bpf": {"autoMount": auto}}), "bpffs") for auto in (False, True)
    )
    assert check["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert "mountPropagation" not in check["volumeMounts"][0]
    assert "exit 1" in check["args"][0]
    assert mount["securityContext"]["privileged"] is True
    assert mount["volumeMounts"][0]["mountPropagation"] == "Bidirectional"
    assert "exec mount -t bpf" in mount["args"][0]


@pytest.mark.parametrize("probe", PROBES)
def test_no_probe_asks_whether_the_node_wants_traffic(probe: str) -> None:
    for values, port in (({}, 10256), ({"healthz": {"port": 20256}}, 20256)):
        asked = container(agent(values), "ebpflb")[probe]["httpGet"]
        path = "/readyz" if probe == "readinessProbe" else "/livez"
        assert asked == {"path": path, "port": port}


def test_probes_go_where_the_agent_listens() -> None:
    pod = agent({"healthz": {"bindAddress": "192.0.2.7"}})
    assert all(container(pod, "ebpflb")[name]["httpGet"]["host"] == "192.0.2.7" for name in PROBES)


def test_it_knows_its_node_by_the_downward_api() -> None:
    field = variables(agent())["EBPFLB_NODE_NAME"]
    assert field == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_it_reaches_the_api_without_a_service() -> None:
    assert "KUBERNETES_SERVICE_HOST" not in variables(agent())
    told = variables(agent(EVERYTHING))
    assert told["KUBERNETES_SERVICE_HOST"] == "2001:db8::10"
    assert told["KUBERNETES_SERVICE_PORT"] == "8443"
    assert "EBPFLB_API_SERVERS" not in told


def test_the_api_may_have_several_addresses() -> None:
    hosts = ["192.0.2.1", "2001:db8::2", "api.example.org"]
    told = variables(agent({"k8sServiceHost": hosts}))
    assert told["KUBERNETES_SERVICE_HOST"] == "192.0.2.1"
    others = "https://[2001:db8::2]:6443,https://api.example.org:6443"
    assert told["EBPFLB_API_SERVERS"] == others
    assert "EBPFLB_API_SERVERS" not in variables(agent({"k8sServiceHost": hosts[:1]}))


def test_changed_settings_restart_the_agents_one_after_the_other() -> None:
    assert checksum({}) == checksum({"podLabels": {"a": "b"}})
    assert checksum({}) != checksum({"config": {"verbosity": 1}})
    config = mounts(agent(), "ebpflb")["/etc/ebpflb/config.yaml"]
    assert config["subPath"] == "config.yaml"


def test_the_update_strategy_is_that_of_a_daemonset() -> None:
    usual = {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}
    for given, expected in (
        ({}, usual),
        (
            {"rollingUpdate": {"maxUnavailable": 3}},
            {**usual, "rollingUpdate": {"maxUnavailable": 3}},
        ),
        ({"type": "OnDelete"}, {"type": "OnDelete"}),
    ):
        daemonset = installed(render({"updateStrategy": given}), "DaemonSet")
        assert daemonset["spec"]["updateStrategy"] == expected


def test_probes_have_the_numbers_that_are_given() -> None:
    usual = container(agent(), "ebpflb")["livenessProbe"]
    given = container(agent({"livenessProbe": {"periodSeconds": 30}}), "ebpflb")["livenessProbe"]
    assert given == {**usual, "periodSeconds": 30}
    assert usual["timeoutSeconds"] == 5


def test_arguments_variables_and_volumes_can_be_added() -> None:
    pod = agent(EVERYTHING)
    assert container(pod, "ebpflb")["args"][-2:] == ["/etc/ebpflb/config.yaml", "--verbosity=1"]
    assert variables(pod)["TZ"] == "UTC"
    assert host_paths(mounts(pod, "ebpflb"))["/var/log/ebpflb"] == "/var/log/ebpflb"


def test_every_container_says_what_it_needs() -> None:
    for each in render(EVERYTHING):
        if each["kind"] in ("DaemonSet", "Deployment", "Job"):
            pod = pod_of(each)
            for one in (*pod.get("initContainers", []), *pod["containers"]):
                assert set(one["resources"]["requests"]) == {"cpu", "memory"}, one["name"]


def test_the_same_labels_are_on_every_object_and_pod_and_select_nothing() -> None:
    label = {"team": "network"}
    for each in render({**EVERYTHING, "commonLabels": label}):
        assert each["metadata"]["labels"].items() >= label.items()
        if each["kind"] in ("DaemonSet", "Deployment", "Job"):
            assert each["spec"]["template"]["metadata"]["labels"].items() >= label.items()
            assert "team" not in each["spec"].get("selector", {}).get("matchLabels", {})


def test_the_startup_taint_is_tolerated_and_removed_beside_the_agent_without_any_right() -> None:
    assert "startup-taint" not in [each["name"] for each in agent()["containers"]]
    pod = agent({"startupTaint": {"enabled": True, "key": "a/b"}, "tolerations": []})
    assert pod["tolerations"] == [{"key": "a/b", "operator": "Exists"}]
    beside = container(pod, "startup-taint")
    assert beside["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert beside["command"][-1].endswith("&& exec sleep infinity")
    assert beside["args"][1:] == [
        *("served", "inf", "$(EBPFLB_NODE_NAME)", "a/b"),
        "http://127.0.0.1:10256/readyz",
    ]


def test_a_digest_goes_before_a_tag() -> None:
    digest = f"sha256:{'0' * 64}"
    image = {"repository": "registry.example/ebpflb", "tag": "1.2.3"}
    assert container(agent({"image": image}), "ebpflb")["image"] == "registry.example/ebpflb:1.2.3"
    found = container(agent({"image": {**image, "digest": digest}}), "ebpflb")["image"]
    assert found == f"registry.example/ebpflb@{digest}"


def test_taking_over_is_done_beside_the_agent_with_a_view_of_the_nodes_processes() -> None:
    assert len(agent()["containers"]) == 1
    pod = agent({"kubeProxy": {"takeover": True}})
    beside = container(pod, "takeover")
    assert pod["hostPID"] is True
    assert beside["args"][0].startswith("until ebpflb takeover --wait")
    assert beside["securityContext"]["capabilities"]["add"] == [
        "NET_ADMIN",
        "NET_RAW",
        "SYS_PTRACE",
    ]
    own = container(pod, "ebpflb")["securityContext"]
    assert {**beside["securityContext"], "capabilities": own["capabilities"]} == own
    assert beside["volumeMounts"] == [{"name": "xtables-lock", "mountPath": "/run/xtables.lock"}]
    assert variables(pod, "takeover") == {"EBPFLB_METRICS_BIND_ADDRESS": "127.0.0.1:10249"}


def test_everything_lies_in_the_namespace_of_the_release() -> None:
    objects = render(EVERYTHING, namespace="network", release="lb")
    apart = {
        *("ClusterRole", "ClusterRoleBinding"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "APIService"),
        "GatewayClass",
    }
    outside = "lb-ebpflb-relay-authentication"
    inside = [each["metadata"] for each in objects if each["kind"] not in apart]
    assert {each["namespace"] for each in inside if each["name"] != outside} == {"network"}
    named_otherwise = ("ServiceAccount", "APIService", "GatewayClass")
    names = [each["metadata"]["name"] for each in objects if each["kind"] not in named_otherwise]
    assert all(name.startswith("lb-ebpflb") for name in names)
    assert "nodeport-addresses" in settings_file(objects)
