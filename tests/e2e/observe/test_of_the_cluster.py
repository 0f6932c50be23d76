# SPDX-License-Identifier: Apache-2.0
"""The plugin predicts what happens on each of two nodes that treat a Service differently."""

import pytest

from ebpflb.cli.explain_text import rendered
from ebpflb.kubectl.explain import Printed, differing, row_of
from ebpflb.model.compact import from_compact
from ebpflb.model.compact.frontends import form_decoder, rows_decoder
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.questions import fate, is_silent, names
from tests.e2e.steps.explained import explained, place, source_of


@pytest.fixture
def local(cluster, lab):
    """A Service under external policy Local whose endpoints are all on node1."""
    return cluster.serve(cluster.new(externalTrafficPolicy="Local"), lab.pods_on("node1"))


def test_services_says_which_nodes_serve_clients_outside(cluster, lab, local):
    found = {}
    for node in lab.nodes:
        done = ebpflb(node, "services", "--service", f"default/{local.name}", "--compact")
        rows = rows_decoder.decode(from_compact(done.stdout))
        found[node.name] = {form_decoder.decode(row.form).name.type: row.outside for row in rows}
    assert found == {
        "node1": {"ClusterIP": "", "NodePort": "served"},
        "node2": {"ClusterIP": "", "NodePort": "drop"},
    }
    for version in cluster.versions:
        first, second = (address_of(node, version) for node in lab.nodes)
        assert fate(lab.client, first, local.node_port) in names(lab.pods_on("node1"))
        assert is_silent(lab.client, second, local.node_port)


def test_explain_says_of_each_node_what_that_node_does(cluster, lab, local):
    pods = lab.pods_on("node1")
    for version in cluster.versions:
        printed = []
        for node, status in zip(lab.nodes, (0, 1), strict=True):
            target = place(address_of(node, version), local.node_port)
            answer = explained(node, source_of(lab.client, version), target, status)
            printed.append(Printed(rendered(answer), row_of(answer), {node.name}))
        text = differing(printed, "wide")
        _, _, _, first, second, *_ = text.splitlines()
        assert first.split()[:3] == ["node1", "works:", "translated"]
        assert first.split()[3:] == [f"{1 / len(pods):.0%}"] * len(pods)
        assert second.split() == ["node2", "fails:", "dropped", *["-"] * len(pods)]
        own, other = text.split("On node2:\n")
        assert "and the policy is Local" not in own
        assert "and the policy is Local" in other
