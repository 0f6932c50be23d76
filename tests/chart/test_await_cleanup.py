# SPDX-License-Identifier: Apache-2.0
"""The script by which pods of an uninstallation wait, run as those run it."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chart.harness.api import FakeApi, fake_api
from tests.chart.harness.rendering import Object, container, left_for_uninstall, pod_of, render

AGENTS = "/apis/apps/v1/namespaces/kube-system/daemonsets/ebpflb"
DAEMONSET = "/apis/apps/v1/namespaces/kube-system/daemonsets/ebpflb-cleanup"
PODS = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io%2Fcomponent%3Dcleanup"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    with fake_api(tmp_path) as api:
        yield api


def wait(
    api: FakeApi, seconds: float, what: str = "clean", port: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the script of the rendered Job, or of the pods that clean up, against that server."""
    kind, name = {"clean": ("Job", "wait"), "gone": ("DaemonSet", "agents-gone")}[what]
    script, *arguments, _ = container(pod_of(left_for_uninstall(render(), kind)), name)["args"]
    command = [sys.executable, "-c", script, *arguments, str(seconds), str(api.account)]
    address = {"HOST": "127.0.0.1", "PORT": str(port or api.port)}
    environment = {f"KUBERNETES_SERVICE_{key}": value for key, value in address.items()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def daemonset(ready: int, desired: int, *, observed: bool = True) -> Object:
    status = {"numberReady": ready, "desiredNumberScheduled": desired, "observedGeneration": 2}
    return {"metadata": {"generation": 2 if observed else 3}, "status": status}


def pod(node: str, *, ready: bool, owner: str = "ebpflb-cleanup") -> Object:
    condition = {"type": "Ready", "status": str(ready)}
    return {
        "metadata": {"ownerReferences": [{"name": owner}]},
        "spec": {"nodeName": node},
        "status": {"conditions": [{"type": "Initialized", "status": "True"}, condition]},
    }


def test_it_ends_well_when_all_nodes_are_clean(api: FakeApi) -> None:
    api.answers = {DAEMONSET: [daemonset(3, 3)]}
    done = wait(api, 20)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_it_waits_until_they_are(api: FakeApi) -> None:
    api.answers = {
        DAEMONSET: [daemonset(0, 0, observed=False), daemonset(1, 2), daemonset(2, 2)],
        PODS: [{"items": [pod("node2", ready=False)]}],
    }
    done = wait(api, 20)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_new_daemonset_without_a_status_is_waited_for(api: FakeApi) -> None:
    api.answers = {
        DAEMONSET: [{"metadata": {"generation": 1}, "status": {}}, daemonset(1, 1)],
        PODS: [{"items": []}],
    }
    assert wait(api, 20).returncode == 0


def test_it_names_the_nodes_that_are_not_clean_in_time(api: FakeApi) -> None:
    others = [pod("node4", ready=False, owner="another"), {**pod("", ready=False), "spec": {}}]
    items = [pod("node3", ready=False), pod("node1", ready=True), pod("node2", ready=False)]
    api.answers = {DAEMONSET: [daemonset(1, 4)], PODS: [{"items": [*items, *others]}]}
    done = wait(api, 1.5)
    assert done.returncode == 1
    assert done.stderr.startswith("not clean yet: (not scheduled), node2, node3; the DaemonSet")


def test_it_says_so_when_the_api_refuses(api: FakeApi) -> None:
    (api.account / "token").write_text("another")
    done = wait(api, 1.5)
    assert done.returncode == 1
    assert done.stderr.startswith("the API does not answer: HTTP Error 401")


def test_it_says_so_when_nobody_listens(api: FakeApi) -> None:
    done = wait(api, 1.5, port=1)
    assert done.returncode == 1
    assert "Connection refused" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_removed_while_the_agents_are_there(api: FakeApi) -> None:
    api.answers = {AGENTS: [daemonset(2, 2)]}
    done = wait(api, 1.5, "gone")
    assert done.returncode == 1
    assert done.stderr.startswith("the DaemonSet ebpflb is still there")


def test_an_api_that_refuses_is_no_sign_that_the_agents_are_gone(api: FakeApi) -> None:
    (api.account / "token").write_text("another")
    assert wait(api, 1.5, "gone").returncode == 1
    assert wait(api, 1.5, "gone", port=1).returncode == 1


def test_the_agents_are_gone_when_the_api_knows_them_no_more(api: FakeApi) -> None:
    api.answers = {AGENTS: [daemonset(2, 2), None]}
    done = wait(api, 20, "gone")
    assert (done.returncode, done.stderr) == (0, "")
