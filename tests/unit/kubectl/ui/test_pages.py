# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.errors import ConfigError, QueryError
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from tests.ui.flows import flow, of_node
from tests.ui.page import pages_of


def run(node, arguments):
    return f"{node}: {' '.join(arguments)}"


@pytest.fixture
def traffic():
    return EdgeTraffic()


@pytest.fixture
def pages(traffic):
    return pages_of(traffic, Following(traffic, dict), run=run)


def test_the_view_names_the_nodes_too(pages, traffic):
    traffic.add(of_node("node1", flow()))
    found = pages["view"]({"group": "pod"})
    assert (found["nodes"], found["trouble"], found["seen"]) == ([], "", 1)


@pytest.mark.parametrize(
    ("client", "frontend", "command"),
    [
        ("shop/cart-0", {"address": "10.96.0.10", "port": 80}, "shop/cart-0 10.96.0.10:80/tcp"),
        (None, {"address": "10.96.0.10", "port": 80}, "host 10.96.0.10:80/tcp"),
        ({"address": "fd00::5"}, {"address": "fd00::a", "port": 53}, "fd00::5 [fd00::a]:53/tcp"),
    ],
)
def test_explain_asks_the_node_that_recorded_the_flow(pages, traffic, client, frontend, command):
    traffic.add(of_node("node1", flow(client=client, frontend=frontend)))
    found = pages["explain"]({"flow": "1"})
    copied = command.replace("[fd00::a]:53/tcp", "'[fd00::a]:53/tcp'")
    assert found == {
        "node": "node1",
        "command": f"ebpflb explain {command}",
        "text": f"node1: explain {command}",
        "copied": f"kubectl ebpflb explain --context main -n shop --node node1 {copied}",
    }


@pytest.mark.parametrize(
    "changes",
    [
        {"client": "--bpffs-root=/tmp"},
        {"client": "a b"},
        {"client": "$(reboot)"},
        {"protocol": "TCP;reboot"},
        {"frontend": {"address": "-o", "port": 1}},
        {"client": None, "source": "elsewhere"},
    ],
)
def test_what_a_flow_says_does_not_become_an_option(pages, traffic, changes):
    traffic.add(of_node("node1", flow(**changes)))
    with pytest.raises(ConfigError, match=r"^explain: "):
        pages["explain"]({"flow": "1"})


@pytest.mark.parametrize(
    "changes",
    [
        {"client": {"address": "", "pod": "another namespace"}},
        {"client": {"address": "", "pod": "a node"}},
        {"frontend": {"address": "", "port": 30080}},
    ],
)
def test_of_a_flow_of_which_not_all_may_be_seen_there_is_no_explanation(pages, traffic, changes):
    traffic.add(of_node("node1", flow(**changes)))
    with pytest.raises(ConfigError, match=r"^explain: you may not see who this connection is from"):
        pages["explain"]({"flow": "1"})


@pytest.mark.parametrize("number", ["", "x", "-1", "²", "9" * 30])
def test_explain_needs_a_flow(pages, number):
    with pytest.raises(ConfigError, match=r"^flow: "):
        pages["explain"]({"flow": number})


def test_a_flow_that_is_no_longer_kept(pages):
    with pytest.raises(ConfigError, match="no longer kept"):
        pages["explain"]({"flow": "7"})


def test_an_agent_that_cannot_explain(traffic):
    def fail(node, arguments):
        raise QueryError(f"{node}: no agent")

    traffic.add(of_node("node1", flow()))
    with pytest.raises(QueryError, match="node1: no agent"):
        pages_of(traffic, Following(traffic, dict), run=fail)["explain"]({"flow": "1"})
