# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.kubectl.ui.edges import Party, edge_of, workload_of
from tests.ui.flows import dropped, failed, flow, of_node, refused


def test_a_flow_between_pods():
    edge = edge_of(of_node("node1", flow()))
    assert edge.client == Party(
        "pod", "shop/cart-7d4b9c6f5-x2x4z", "shop", "cart", "cart-7d4b9c6f5-x2x4z", "node1"
    )
    assert edge.target == Party("pod", "shop/web-6c8f9d7b5-bcdfg", "shop", *WEB, "node2", "zone-b")
    assert (edge.service, edge.namespace) == ("shop/web", "shop")
    assert (edge.node, edge.verdict) == ("node1", "forwarded")


WEB = ("web", "web-6c8f9d7b5-bcdfg")


@pytest.mark.parametrize(
    ("pod", "workload"),
    [
        pytest.param("web-7d4b9c6f5-x2x4z", "web", id="Deployment"),
        pytest.param("fluentd-k8d9f", "fluentd", id="DaemonSet"),
        pytest.param("redis-0", "redis", id="StatefulSet"),
        pytest.param("report-29401440-k8d9f", "report", id="CronJob"),
        pytest.param("curl", "curl", id="a pod alone"),
        pytest.param("my-proxy", "my-proxy", id="a word with vowels"),
        pytest.param("", "", id="nothing"),
        pytest.param("-0", "-0", id="nothing before the number"),
    ],
)
def test_the_workload_of_a_pod(pod, workload):
    assert workload_of(pod) == workload


def test_an_agent_that_knows_the_workload_is_believed():
    client = {"address": "10.1.0.4", "pod": "shop/cart-x2x4z", "workload": "Job/cart-x2x4z"}
    assert edge_of(of_node("node1", flow(client=client))).client.workload == "cart-x2x4z"


@pytest.mark.parametrize(
    ("made", "verdict", "target"),
    [
        pytest.param(failed(), "failed", "shop/web-6c8f9d7b5-bcdfg", id="no answer"),
        pytest.param(
            failed(ended="backend_refused"), "failed", "shop/web-6c8f9d7b5-bcdfg", id="no"
        ),
        pytest.param(refused(), "refused", "refused: no endpoint", id="refused"),
        pytest.param(dropped(), "dropped", "dropped: source range", id="dropped"),
        pytest.param(dropped(""), "dropped", "dropped: no reason given", id="without a reason"),
    ],
)
def test_what_goes_wrong(made, verdict, target):
    edge = edge_of(of_node("node1", made))
    assert (edge.verdict, edge.target.name) == (verdict, target)


@pytest.mark.parametrize(
    ("client", "source", "kind", "name", "node"),
    [
        ({"address": "198.51.100.7", "port": 4000}, "elsewhere", "outside", "198.51.100.7", ""),
        ({"address": "10.1.0.9", "port": 4000}, "this_node", "cluster", "10.1.0.9", "node1"),
        (None, "this_node", "cluster", "unknown", "node1"),
        (None, "elsewhere", "outside", "unknown", ""),
    ],
)
def test_clients_without_a_name(client, source, kind, name, node):
    found = edge_of(of_node("node1", flow(client=client, source=source))).client
    assert (found.kind, found.name, found.node) == (kind, name, node)


@pytest.mark.parametrize("name", ["another namespace", "a node"])
def test_what_the_relay_leaves_out_is_one_party(name):
    hidden = {"address": "", "pod": name}
    edge = edge_of(of_node("node1", flow(client=hidden) | {"backend": {**hidden, "zone": "z"}}))
    assert edge.client == Party("hidden", name, node="node1")
    assert edge.target == Party("hidden", name, zone="z")


def test_an_address_that_is_not_told():
    edge = edge_of(of_node("node1", flow(client={"address": ""}) | {"backend": {"address": ""}}))
    assert (edge.client.name, edge.target.name) == ("unknown", "unknown")


def test_an_address_that_is_no_service_any_more():
    frontend = {"address": "fd00::10", "port": 80}
    edge = edge_of(of_node("node1", flow(frontend=frontend) | {"service": None}))
    assert (edge.service, edge.namespace) == ("[fd00::10]:80/TCP", "")


@pytest.mark.parametrize("unknown", [{"event": "begun"}, {"verdict": "lost"}])
def test_what_the_page_has_no_words_for(unknown):
    with pytest.raises(ValueError, match=r"unknown event '.*' or verdict '.*'"):
        edge_of(of_node("node1", flow(**unknown)))
