# SPDX-License-Identifier: Apache-2.0
"""The script with which pods of the chart wait and clean up, run as the pods run it."""

import functools
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.chart.harness.api import FakeApi, fake_api
from tests.chart.harness.rendering import (
    Object,
    agent,
    container,
    left_for_uninstall,
    of_hook,
    of_kind,
    pod_of,
    render,
)

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
AGENTS = "/apis/apps/v1/namespaces/kube-system/daemonsets/ebpflb"
DAEMONSET = "/apis/apps/v1/namespaces/kube-system/daemonsets/ebpflb-cleanup"
PODS = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io%2Fcomponent%3Dcleanup"
TESTED = "/apis/apps/v1/namespaces/kube-system/daemonsets/ebpflb-test-pod"
TESTS = PODS.replace("cleanup", "test")
NODE = "/api/v1/nodes/node1"
OWN = [
    "/api/v1/namespaces/kube-system/serviceaccounts/ebpflb-cleanup",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings/ebpflb-cleanup",
    "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/roles/ebpflb-cleanup",
    DAEMONSET,
]
# The relay with certificates of cert-manager, and the Secrets of those.
ISSUED: Object = {"enabled": True, "certificates": {"certManager": True}}
SECRETS = [
    f"/api/v1/namespaces/kube-system/secrets/ebpflb-{name}"
    for name in ("observe", "relay", "relay-agents", "relay-ca")
]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[FakeApi]:
    with fake_api(tmp_path) as api:
        yield api


@pytest.fixture
def ready(tmp_path: Path) -> Iterator[str]:
    """The URL of an agent that serves its node."""
    (tmp_path / "readyz").write_text("ok")
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/readyz"
        server.shutdown()
        thread.join()


def wait(
    api: FakeApi, seconds: float, what: str = "clean", port: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """Run the script of the container for this step against that server."""
    return run(api, seconds, STEPS[what](), what, port)


def run(
    api: FakeApi, seconds: float, container: Object, what: str, port: int | None = None
) -> "subprocess.CompletedProcess[str]":
    """The same, for any container."""
    script, step, _, *arguments = container["args"]
    assert step == what
    script = script.replace(ACCOUNT, str(api.account))
    command = [sys.executable, "-c", script, step, str(seconds), *arguments]
    address = {"HOST": "127.0.0.1", "PORT": str(port or api.port)}
    environment = {f"KUBERNETES_SERVICE_{key}": value for key, value in address.items()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def removal(uninstall: Object, relay: Object) -> Object:
    """The container that waits for clean nodes."""
    jobs = of_kind(render({"uninstall": uninstall, "relay": relay}), "Job")
    (job,) = (each for each in jobs if each["metadata"]["name"] == "ebpflb-cleanup")
    return container(pod_of(job), "wait")


def startup_taint() -> Object:
    return container(agent({"startupTaint": {"enabled": True}}), "startup-taint")


STEPS: dict[str, Callable[[], Object]] = {
    "clean": lambda: removal({}, {}),
    "gone": lambda: container(pod_of(left_for_uninstall(render(), "DaemonSet")), "agents-gone"),
    "reached": lambda: container(pod_of(of_hook(render(), "test", "Job", "ebpflb-test")), "pod"),
}


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
    assert api.deleted == OWN


def test_what_was_removed_at_a_first_try_is_no_obstacle(api: FakeApi) -> None:
    api.answers = {DAEMONSET: [daemonset(3, 3)], **{path: [None] for path in OWN[:-1]}}
    assert wait(api, 20).returncode == 0
    assert api.deleted == OWN


def test_without_a_daemonset_the_account_may_be_that_of_the_next_one(api: FakeApi) -> None:
    api.answers = {DAEMONSET: [None]}
    assert wait(api, 20).returncode == 0
    assert api.deleted == []


def test_secrets_of_the_relay_that_helm_does_not_know_are_removed_first(api: FakeApi) -> None:
    api.answers = {DAEMONSET: [daemonset(3, 3)], SECRETS[0]: [None]}
    done = run(api, 20, removal({}, ISSUED), "clean")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert api.deleted == [*SECRETS, *OWN]


def test_with_argo_cd_it_removes_the_secrets_alone_and_waits_for_the_daemonset(
    api: FakeApi,
) -> None:
    api.answers = {DAEMONSET: [None, daemonset(3, 3)], SECRETS[0]: [None]}
    done = run(api, 20, removal({"mode": "argocd"}, ISSUED), "cleaned")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "not in the API yet: kube-system ebpflb-cleanup\n"
    assert api.deleted == SECRETS


def test_with_argo_cd_it_names_the_nodes_that_are_not_clean_in_time(api: FakeApi) -> None:
    api.answers = {DAEMONSET: [daemonset(0, 1)], PODS: [{"items": [pod("node1", ready=False)]}]}
    done = run(api, 1.5, removal({"mode": "argocd"}, ISSUED), "cleaned")
    assert done.returncode == 1
    assert done.stderr.startswith(
        "not cleaned up: node1; the DaemonSet ebpflb-cleanup keeps trying"
    )
    assert api.deleted == []


def test_it_waits_until_they_are(api: FakeApi) -> None:
    api.answers = {
        DAEMONSET: [daemonset(0, 0, observed=False), daemonset(1, 2), daemonset(2, 2)],
        PODS: [{"items": []}, {"items": [pod("node2", ready=False)]}],
    }
    done = wait(api, 20)
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert first.startswith("not cleaned up: (no pod yet);")
    assert second.startswith("not cleaned up: node2;")


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
    assert done.stderr.startswith("not cleaned up: (not scheduled), node2, node3; the DaemonSet")
    assert api.deleted == []


def test_it_says_so_when_the_api_refuses(api: FakeApi) -> None:
    (api.account / "token").write_text("another")
    done = wait(api, 1.5)
    assert done.returncode == 1
    assert done.stderr.startswith("the API does not answer: HTTP Error 401")


def test_a_refused_connection_to_the_api_is_reported(api: FakeApi) -> None:
    done = wait(api, 1.5, port=1)
    assert done.returncode == 1
    assert "Connection refused" in done.stderr
    assert "Traceback" not in done.stderr


def test_nothing_is_removed_while_the_agents_are_there(api: FakeApi) -> None:
    api.answers = {AGENTS: [daemonset(2, 2)]}
    done = wait(api, 1.5, "gone")
    assert done.returncode == 1
    assert done.stderr.startswith("the DaemonSet ebpflb still exists")


def test_an_api_that_refuses_is_no_sign_that_the_agents_are_gone(api: FakeApi) -> None:
    (api.account / "token").write_text("another")
    assert wait(api, 1.5, "gone").returncode == 1
    assert wait(api, 1.5, "gone", port=1).returncode == 1


def test_the_agents_are_gone_when_the_api_knows_them_no_more(api: FakeApi) -> None:
    api.answers = {AGENTS: [daemonset(2, 2), None]}
    done = wait(api, 20, "gone")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_test_names_the_nodes_without_services_and_says_why(api: FakeApi) -> None:
    refused, waiting = pod("node2", ready=False, owner="ebpflb-test-pod"), pod("node1", ready=False)
    ended = {"message": "10.96.0.1:443: timed out\n"}
    refused["status"]["initContainerStatuses"] = [{"state": {}, "lastState": {"terminated": ended}}]
    waiting["metadata"]["ownerReferences"][0]["name"] = "ebpflb-test-pod"
    api.answers = {TESTED: [daemonset(1, 3)], TESTS: [{"items": [refused, waiting]}]}
    done = wait(api, 1.5, "reached")
    assert done.returncode == 1
    assert done.stderr == "no Service answers from: node1, node2 (10.96.0.1:443: timed out)\n"


def test_a_test_passes_when_every_node_has_reached_a_service(api: FakeApi) -> None:
    api.answers = {TESTED: [daemonset(3, 3)]}
    done = wait(api, 20, "reached")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert api.deleted == []


def serve(api: FakeApi, seconds: float, url: str) -> "subprocess.CompletedProcess[str]":
    """Run the container that removes the startup taint, for node1 whose agent is at `url`."""
    script, step, forever, node, key, usual = startup_taint()["args"]
    assert (step, forever, node) == ("served", "inf", "$(EBPFLB_NODE_NAME)")
    assert (key, usual) == ("ebpflb.io/agent-not-ready", "http://127.0.0.1:10256/readyz")
    script = script.replace(ACCOUNT, str(api.account))
    command = [sys.executable, "-c", script, step, str(seconds), "node1", key, url]
    address = {"HOST": "127.0.0.1", "PORT": str(api.port)}
    environment = {f"KUBERNETES_SERVICE_{name}": value for name, value in address.items()}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def tainted(*keys: str) -> Object:
    return {"spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in keys]}}


def test_the_startup_taint_goes_when_the_agent_serves_and_no_other_does(
    api: FakeApi, ready: str
) -> None:
    taint = "ebpflb.io/agent-not-ready"
    api.answers = {NODE: [tainted("a", taint, "b", taint), tainted("a", "b")]}
    done = serve(api, 20, ready)
    assert done.returncode == 0, done.stderr
    ((path, steps),) = api.patched
    assert path == NODE
    assert [(each["op"], each["path"]) for each in steps] == [
        *(("test", "/spec/taints/3"), ("remove", "/spec/taints/3")),
        *(("test", "/spec/taints/1"), ("remove", "/spec/taints/1")),
    ]
    assert {each["value"]["key"] for each in steps if each["op"] == "test"} == {taint}


def test_the_startup_taint_stays_while_the_agent_does_not_serve(api: FakeApi) -> None:
    api.answers = {NODE: [tainted("ebpflb.io/agent-not-ready")]}
    done = serve(api, 1.5, "http://127.0.0.1:1/readyz")
    assert done.returncode == 1
    assert done.stderr.startswith("the agent does not serve this node yet")
    assert api.patched == []


def test_a_node_without_the_taint_is_left_as_it_is(api: FakeApi, ready: str) -> None:
    api.answers = {NODE: [{"spec": {}}]}
    assert serve(api, 20, ready).returncode == 0
    assert api.patched == []
