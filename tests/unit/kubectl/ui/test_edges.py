# SPDX-License-Identifier: Apache-2.0
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.kubectl.ui.edges import Party, read_flow, workload_of
from tests.ui.flows import dropped, failed, flow, refused


def test_a_flow_between_pods():
    edge, values = read_flow("node1", flow())
    assert edge.client == Party(
        "pod", "shop/cart-7d4b9c6f5-x2x4z", "shop", "cart", "cart-7d4b9c6f5-x2x4z", "node1"
    )
    assert edge.target == Party("pod", "shop/web-6c8f9d7b5-bcdfg", "shop", *WEB, "node2", "zone-b")
    assert (edge.service, edge.namespace) == ("shop/web", "shop")
    assert (edge.node, edge.verdict) == ("node1", "forwarded")
    assert values["client"] == "shop/cart-7d4b9c6f5-x2x4z:40000"
    assert values["frontend"] == "10.96.0.10:80/TCP"
    assert (values["sent"], values["received"], values["seconds"]) == (100, 2000, 0.02)


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
    assert read_flow("node1", flow(client=client))[0].client.workload == "cart-x2x4z"


@pytest.mark.parametrize(
    ("made", "verdict", "target"),
    [
        pytest.param(failed(), "failed", "shop/web-6c8f9d7b5-bcdfg", id="no answer"),
        pytest.param(
            failed(ended="backend_refused"), "failed", "shop/web-6c8f9d7b5-bcdfg", id="no"
        ),
        pytest.param(
            failed(protocol="UDP"), "forwarded", "shop/web-6c8f9d7b5-bcdfg", id="UDP one way"
        ),
        pytest.param(refused(), "refused", "refused: no endpoint", id="refused"),
        pytest.param(dropped(), "dropped", "dropped: source range", id="dropped"),
        pytest.param(dropped(""), "dropped", "dropped: no reason given", id="without a reason"),
    ],
)
def test_what_goes_wrong(made, verdict, target):
    edge, _ = read_flow("node1", made)
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
    found = read_flow("node1", flow(client=client, source=source))[0].client
    assert (found.kind, found.name, found.node) == (kind, name, node)


def test_an_address_that_is_no_service_any_more():
    frontend = {"address": "fd00::10", "port": 80}
    edge, _ = read_flow("node1", flow(service="x/y", frontend=frontend) | {"service": {}})
    assert (edge.service, edge.namespace) == ("[fd00::10]:80/TCP", "")


@pytest.mark.parametrize("bad", [None, 1, "x", [], {}, {"event": "begun"}, {"event": ["end"]}])
def test_what_is_no_flow(bad):
    with pytest.raises(ValueError, match="not a flow"):
        read_flow("node1", bad)


@pytest.mark.parametrize(
    "bad", [-1, 1e300, float("nan"), float("inf"), 10**400, True, "9", None, []]
)
def test_numbers_that_are_none_count_as_unknown(bad):
    _, values = read_flow("node1", flow(seconds=0.5) | {"seconds": bad, "retransmits": bad})
    assert (values["seconds"], values["retransmits"]) == (None, 0)


def test_names_are_cut():
    edge, values = read_flow("node1", flow(client="x" * 10_000, service="y" * 9000 + "/z"))
    assert len(edge.client.name) == 506
    assert len(edge.namespace) == 253
    assert len(json.dumps(values)) < 3000


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(flow())), ANYTHING))
def test_any_field_may_be_anything(changes):
    made: dict[str, Any] = flow() | changes | {"event": "end"}
    _, values = read_flow("node1", made)
    json.dumps(values, allow_nan=False)
