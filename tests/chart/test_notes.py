# SPDX-License-Identifier: Apache-2.0
"""helm's notes after an installation, and the tests of `helm test`."""

import json
import re
import shlex
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ebpflb.cli import main
from ebpflb.kubectl import program as plugin
from tests.chart.harness.rendering import (
    CHART,
    IMAGE,
    Object,
    agent,
    helm,
    hook_of,
    installed,
    of_hook,
    of_kind,
    pod_of,
    render,
    template,
)
from tests.cluster.harness.binaries import KUBERNETES_VERSION

# Files of the chart that show the notes as YAML: all, and what they say of a kube-proxy.
_SHOW = 'notes: {{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}\n'
_SHOW_KUBE_PROXY = """\
notes: {{ include "ebpflb.kubeProxyNotes" (merge (dict "root" .) (fromJson `%s`)) | toJson }}
"""


def notes(tmp_path: Path, values: Object, show: str = _SHOW) -> str:
    """The notes that helm would show."""
    chart = tmp_path / "ebpflb"
    shutil.copytree(CHART, chart)
    (chart / "templates" / "show.yaml").write_text(show)
    done = template(values, chart=chart, namespace="network")
    assert done.returncode == 0, done.stderr
    (found,) = (each for each in yaml.safe_load_all(done.stdout) if each and "notes" in each)
    return str(found["notes"])


def pods_of_helm_test() -> list[Object]:
    tests = [each for each in of_kind(render(), "DaemonSet") if hook_of(each) == "test"]
    return [pod_of(each) for each in tests]


def connect(port: int) -> "subprocess.CompletedProcess[str]":
    """Run the script of a test pod against a port of this machine."""
    (container,) = pods_of_helm_test()[0]["initContainers"]
    variables = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    command = [sys.executable, *container["command"][1:], *container["args"]]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def test_the_notes_name_the_agents_as_they_are_called(tmp_path: Path) -> None:
    name = installed(render(), "DaemonSet")["metadata"]["name"]
    assert f"kubectl rollout status -n network daemonset/{name}" in notes(tmp_path, {})


def test_the_notes_ask_the_agent_of_a_node_and_not_of_any(tmp_path: Path) -> None:
    told = notes(tmp_path, {})
    (selector,) = re.findall(r"get pods -n network -o wide -l (\S+)", told)
    labels = installed(render(), "DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert dict(each.split("=") for each in selector.split(",")).items() <= labels.items()
    assert re.findall(r"kubectl exec -n network (\S+)", told) == ["POD"]


def test_upgrades_in_the_notes_take_the_defaults_of_the_new_chart(tmp_path: Path) -> None:
    upgrades = re.findall(r"helm upgrade .*", notes(tmp_path, {}))
    assert upgrades
    assert all(" --reset-then-reuse-values " in each for each in upgrades)


@pytest.mark.parametrize(
    ("values", "labels", "mode", "said", "unsaid"),
    [
        ({}, {}, "", ["on 3 of the nodes", "10249 and 10256"], ["ipvs", "EKS"]),
        ({}, {}, "ipvs", ["kubeProxy.takeover=true"], ["EKS"]),
        ({}, {}, '"ipvs"', ["mode is ipvs"], []),
        ({}, {}, "nftables", ["on 3 of the nodes"], ["ipvs"]),
        ({}, {"eks.amazonaws.com/component": "kube-proxy"}, "iptables", ["add-on of EKS"], []),
        (
            {"metrics": {"port": 20249}, "healthz": {"port": 20256}},
            {},
            "",
            ["on 3 of the nodes"],
            ["10249"],
        ),
    ],
    ids=["at the same ports", "ipvs", "ipvs in quotes", "nftables", "EKS", "at other ports"],
)
def test_the_notes_know_the_kube_proxy_that_is_there(
    tmp_path: Path,
    values: Object,
    labels: dict[str, str],
    mode: str,
    said: list[str],
    unsaid: list[str],
) -> None:
    daemonset = {"metadata": {"labels": labels}, "status": {"currentNumberScheduled": 3}}
    settings = {"data": {"config.conf": f"kind: KubeProxyConfiguration\nmode: {mode}\n"}}
    given = json.dumps({"daemonset": daemonset, "settings": settings})
    told = notes(tmp_path, values, _SHOW_KUBE_PROXY % given)
    assert all(each in told for each in said), told
    assert not [each for each in unsaid if each in told]


def test_where_no_kube_proxy_runs_the_notes_say_nothing_of_it(tmp_path: Path) -> None:
    gone = {"metadata": {}, "status": {"currentNumberScheduled": 0}}
    for daemonset in ({}, gone):
        given = json.dumps({"daemonset": daemonset, "settings": {}})
        show = _SHOW_KUBE_PROXY % given
        assert not notes(tmp_path / str(len(daemonset)), {}, show).strip()


def test_the_notes_use_commands_that_exist(tmp_path: Path) -> None:
    told = notes(tmp_path, {})
    assert re.findall(r"-- ebpflb (\w+)", told) == ["status"]
    assert re.findall(r"kubectl ebpflb (\w+)", told) == ["status"]
    assert "status" in main.commands
    assert "status" in plugin.commands


def test_the_notes_warn_of_an_api_that_needs_a_service(tmp_path: Path) -> None:
    assert "WARNING: k8sServiceHost is not set" in notes(tmp_path / "a", {})
    assert "WARNING" not in notes(tmp_path / "b", {"k8sServiceHost": "192.0.2.1"})


def test_the_notes_name_the_relay_and_when_its_certificates_end(tmp_path: Path) -> None:
    assert "relay" not in notes(tmp_path / "a", {})
    name = "v1alpha1.observe.ebpflb.io"
    told = notes(
        tmp_path / "b", {"relay": {"enabled": True, "certificates": {"renewAfterDays": 7}}}
    )
    assert f"kubectl get apiservice {name}" in told
    assert "older than 7 days" in told
    elsewhere = {"enabled": True, "certificates": {"certManager": True}}
    assert "days" not in notes(tmp_path / "c", {"relay": elsewhere})


def test_the_notes_say_what_uninstalling_leaves(tmp_path: Path) -> None:
    assert "gone from every node" in notes(tmp_path / "a", {})
    kept = notes(tmp_path / "b", {"uninstall": {"mode": "none"}})
    assert "leaves programs, filters and maps" in kept


def test_the_notes_have_the_command_that_cleans_up_later(tmp_path: Path) -> None:
    kept = notes(tmp_path, {"uninstall": {"mode": "none"}})
    (command,) = re.findall(r"helm template (.*) \| kubectl apply -f -", kept)
    arguments = shlex.split(command.replace("CHART", str(CHART)).replace("values.yaml", "-"))
    done = helm(
        "template",
        *arguments,
        f"--kube-version={KUBERNETES_VERSION}",
        given=yaml.safe_dump({"image": IMAGE, "uninstall": {"mode": "none"}}),
    )
    assert done.returncode == 0, done.stderr
    rendered = [found for found in yaml.safe_load_all(done.stdout) if found]
    left = {(each["kind"], each["metadata"]["name"]) for each in rendered}
    usual = [each for each in render(namespace="network") if hook_of(each) == "post-delete"]
    assert left == {(each["kind"], each["metadata"]["name"]) for each in usual}


def test_the_patches_in_the_notes_take_kube_proxy_away_and_bring_it_back(tmp_path: Path) -> None:
    away, back = re.findall(r"patch daemonset kube-proxy .*-p '(.*)'", notes(tmp_path, {}))
    selector = json.loads(away)["spec"]["template"]["spec"]["nodeSelector"]
    (removal,) = json.loads(back)
    assert removal["op"] == "remove"
    path = removal["path"].replace("~1", "|").split("/")
    assert path[-2:] == ["nodeSelector", next(iter(selector)).replace("/", "|")]


def test_helm_test_tries_a_pod_and_a_process_of_every_node_that_is_served() -> None:
    tests = pods_of_helm_test()
    assert sorted(each["hostNetwork"] for each in tests) == [False, True]
    for part in ("affinity", "nodeSelector", "tolerations"):
        assert [each[part] for each in tests] == [agent()[part]] * 2


def test_helm_test_waits_for_all_of_them() -> None:
    objects = render()
    job = pod_of(of_hook(objects, "test", "Job", "ebpflb-test"))
    waited = {each["args"][-1] for each in job["containers"]}
    daemonsets = [each for each in of_kind(objects, "DaemonSet") if hook_of(each) == "test"]
    assert waited == {each["metadata"]["name"] for each in daemonsets}
    selectors = [each["spec"]["selector"]["matchLabels"] for each in daemonsets]
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in daemonsets]
    assert [[selector.items() <= each.items() for each in labels] for selector in selectors] == [
        [True, False],
        [False, True],
    ]


def test_it_passes_where_somebody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        done = connect(server.getsockname()[1])
    assert done.returncode == 0
    assert done.stdout.startswith("reached 127.0.0.1")


def test_it_fails_where_nobody_answers() -> None:
    done = connect(1)
    assert done.returncode == 1
    assert done.stderr == "127.0.0.1:1: [Errno 111] Connection refused\n"


def test_the_notes_keep_kube_proxy_where_services_are_selected(tmp_path: Path) -> None:
    ports = {"metrics": {"port": 20249}, "healthz": {"port": 20256}}
    told = notes(tmp_path / "a", {"serviceSelector": "canary=yes", **ports})
    assert "kubectl get services -A -l 'canary=yes'" in told
    assert "patch daemonset kube-proxy" not in told
    assert "patch daemonset kube-proxy" in notes(tmp_path / "b", {})
