# SPDX-License-Identifier: Apache-2.0
"""A user whose only right is `view` in one namespace looks through the relay of a real cluster."""

import http.client
import json
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from ebpflb.errors import EbpflbError
from ebpflb.lab import namespaces
from ebpflb.model.flow import Flow, FollowedNode, read_flow, read_watch_line
from ebpflb.words.observe import GROUP, PATH, VERSION
from tests.chart.harness.rendering import NAMESPACE
from tests.cluster.harness import workloads
from tests.cluster.harness.binaries import binary
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.control_plane import run_tool
from tests.cluster.released.plugin import Plugin, viewer_of
from tests.cluster.released.shop import SPACE, cluster_ip
from tests.e2e.harness.waiting import wait_until

ELSEWHERE, CLIENT = "elsewhere", "shopper"
RELAY = "--selector=app.kubernetes.io/component=relay"
HIDDEN = "another namespace"


@pytest.fixture(scope="module")
def viewer(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugin]:
    """The plugin of a user who may view the shop, and nothing else."""
    cluster.control_plane.wait("wait", "--for=condition=Available", f"apiservice/{VERSION}.{GROUP}")
    yield viewer_of(cluster, SPACE, tmp_path_factory.mktemp("viewer"))
    cluster.kubectl("-n", SPACE, "delete", "rolebinding,serviceaccount", "viewer")


@pytest.fixture(scope="module")
def shopper(cluster: Cluster) -> Iterator[str]:
    """The address of a pod of another namespace, which has asked the shop."""
    workloads.apply(cluster, ELSEWHERE, [workloads.asker(CLIENT, cluster.nodes[0].name)])
    workloads.ask_from_pod(cluster, ELSEWHERE, CLIENT, f"http://web.{SPACE}", 3)
    yield workloads.field(cluster, ELSEWHERE, f"pod/{CLIENT}", "{.status.podIP}")
    cluster.kubectl("delete", "namespace", ELSEWHERE)


def raw(user: Plugin, path: str) -> Any:
    """What `kubectl get --raw` prints."""
    return json.loads(run_tool("kubectl", ("get", "--raw", f"{PATH}/{path}"), user.kubeconfig))


def test_who_may_view_a_namespace_sees_its_services(cluster: Cluster, viewer: Plugin):
    found = raw(viewer, f"namespaces/{SPACE}/frontends")
    assert not found["failures"]
    assert {each["namespace"] for each in found["items"]} == {SPACE}
    (web,) = (
        each
        for each in found["items"]
        if (each["service"], each["type"], each["protocol"]) == ("web", "ClusterIP", "TCP")
        and each["address"] == cluster_ip(cluster, "web")
    )
    assert len(web["backends"]) == 2
    assert not web["missing_on"]
    rates = raw(viewer, f"namespaces/{SPACE}/rates?interval=0.5")["items"]
    assert {each["namespace"] for each in rates} == {SPACE}


@pytest.mark.parametrize("place", ["namespaces/kube-system/", ""])
def test_nothing_else_may_be_seen(viewer: Plugin, place: str):
    for resource in ("frontends", "flows", "rates", "connections", "explanations"):
        with pytest.raises(EbpflbError, match="Forbidden"):
            raw(viewer, f"{place}{resource}")


def test_a_client_of_another_namespace_has_no_name(
    cluster: Cluster, viewer: Plugin, plugin: Plugin, shopper: str
):
    def clients(user: Plugin) -> set[str]:
        found = raw(user, f"namespaces/{SPACE}/flows?limit=500&service={SPACE}/web")
        ends = [each.get("client", {}) for each in found["items"]]
        return {each.get("pod", "") for each in ends} | {each["address"] for each in ends if each}

    wait_until(lambda: f"{ELSEWHERE}/{CLIENT}" in clients(plugin), "seen by the admin")
    assert shopper in clients(plugin)
    assert HIDDEN in clients(viewer)
    text = json.dumps(raw(viewer, f"namespaces/{SPACE}/flows?limit=500"))
    assert shopper not in text
    assert CLIENT not in text
    assert not any(f'"{node.ip}"' in text for node in cluster.nodes)
    for name in (shopper, f"{ELSEWHERE}/{CLIENT}"):
        assert raw(viewer, f"namespaces/{SPACE}/flows?from={name}")["items"] == []
        with pytest.raises(EbpflbError, match="may not list"):
            raw(viewer, f"namespaces/{SPACE}/explanations?from={name}&to=web")


def test_a_connection_of_the_namespace_is_explained(cluster: Cluster, viewer: Plugin):
    (found,) = raw(viewer, f"namespaces/{SPACE}/explanations?from=asker-node1&to=web:tcp")["items"]
    assert (found["outcome"], found["nodes"]) == ("works", ["node1"])
    assert found["answer"]["target"]["service"] == f"{SPACE}/web"
    text = json.dumps(found)
    assert not any(node.ip in text for node in cluster.nodes)
    kubernetes = cluster_ip(cluster, "web").rpartition(".")[0]
    for target in (f"{kubernetes}.1:443", f"{kubernetes}.253:9"):
        with pytest.raises(EbpflbError, match="has this address and port"):
            raw(viewer, f"namespaces/{SPACE}/explanations?from=asker-node1&to={target}")


def test_only_the_api_server_may_ask_the_relay(cluster: Cluster):
    path = "{.items[0].status.podIP}"
    relay = cluster.kubectl("-n", NAMESPACE, "get", "pods", RELAY, "-o", f"jsonpath={path}")
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    claim = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
    with namespaces.entered(cluster.nodes[0].netns):
        asked = http.client.HTTPSConnection(relay, 8443, timeout=10, context=context)
        asked.connect()
    with closing(asked):
        asked.request("GET", f"{PATH}/flows", headers=claim)
        answer = asked.getresponse()
        assert answer.status == http.HTTPStatus.UNAUTHORIZED
        assert b"only the API server may ask" in answer.read()


def test_the_plugin_asks_the_relay_and_shows_the_same(
    cluster: Cluster, viewer: Plugin, plugin: Plugin
):
    space = ("-n", SPACE)
    may_exec = ("auth", "can-i", "create", "pods/exec", "-n", NAMESPACE)
    with pytest.raises(EbpflbError):
        run_tool("kubectl", may_exec, viewer.kubeconfig)
    for asked in (("services",), ("explain", "asker-node2", "web:tcp")):
        mine, theirs = (
            [_without_counts(each) for each in user.json(*asked, *space, "--via", via)]
            for user, via in ((viewer, "auto"), (plugin, "exec"))
        )
        assert mine == theirs
    assert "web" in {each["service"] for each in viewer.json("top", *space, "--all")}
    flows = viewer.json("flows", *space, "--last", "5")
    assert {each["service"]["namespace"] for each in flows} == {SPACE}
    viewer.json("connections", *space)
    for elsewhere in ("flows -A", "services -n kube-system", "status"):
        refused = viewer.run(*elsewhere.split(), status=1).stderr
        assert "RBAC forbids it" in refused
        assert len(refused.splitlines()) == 1 + (elsewhere != "status")


def _without_counts(item: dict[str, Any]) -> dict[str, Any]:
    """What does not change from one answer to the next."""
    changing = ("connections", "failed", "refused", "dropped", "answer")
    return {name: value for name, value in item.items() if name not in changing}


def test_flows_are_watched_as_they_happen(cluster: Cluster, viewer: Plugin):
    path = f"{PATH}/namespaces/{SPACE}/flows?watch=true"
    watch = [str(binary("kubectl")), "get", "--raw", path, f"--kubeconfig={viewer.kubeconfig}"]
    with subprocess.Popen(watch, stdout=subprocess.PIPE, text=True) as watching:
        try:
            lines = map(read_watch_line, filter(str.strip, watching.stdout or ()))
            followed = [next(lines) for _ in cluster.nodes]
            running = {
                each.node for each in followed if isinstance(each, FollowedNode) and each.runs
            }
            assert running == {node.name for node in cluster.nodes}
            workloads.ask_from_pod(cluster, SPACE, "asker-node1", f"http://web.{SPACE}")
            flow = next(read_flow(each) for each in lines if isinstance(each, str))
            assert isinstance(flow, Flow)
            assert flow.client
            assert (flow.node, flow.client.pod) == ("node1", f"{SPACE}/asker-node1")
        finally:
            watching.kill()


def test_the_api_server_writes_down_who_has_looked(cluster: Cluster):
    user = f"system:serviceaccount:{SPACE}:viewer"
    asked = {
        (each["verb"], each["objectRef"]["resource"])
        for each in cluster.control_plane.audit_events()
        if each["user"].get("username") == user
        and each.get("objectRef", {}).get("apiGroup") == GROUP
    }
    assert {("list", "frontends"), ("list", "flows"), ("watch", "flows")} <= asked
