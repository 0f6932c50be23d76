# SPDX-License-Identifier: Apache-2.0
"""Commands to be copied: what the plugin itself understands, whatever the page is asked for."""

import shlex

import pytest

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.kubectl.flows import flows as flows_command
from ebpflb.kubectl.ui.commands import CommandWords
from ebpflb.kubectl.ui.query import ViewQuery
from tests.ui.flows import flow, of_node

WORDS = CommandWords("main", "")
HEAD = "kubectl ebpflb flows --context main"


@pytest.mark.parametrize(
    ("query", "command"),
    [
        ({}, "-A --since 1m"),
        ({"window": 300, "until": 10_000}, "-A --since 605s --until 305s"),
        ({"until": 10_305}, "-A --since 1m"),
        ({"namespace": "shop", "verdict": "failed"}, "-n shop --verdict failed --since 1m"),
        ({"service": "shop/web", "node": "n1"}, "-A --service shop/web --node n1 --since 1m"),
        ({"via": "service:shop/web"}, "-A --service shop/web --since 1m"),
        ({"via": "service:10.96.0.10:80/TCP"}, "-A --since 1m"),
        ({"via": "others:others", "client": "workload:shop/cart"}, "-A --since 1m"),
        (
            {"group": "pod", "client": "outside:fd00::7", "target": "pod:shop/web-0"},
            "-A --from fd00::7 --to shop/web-0 --since 1m",
        ),
        ({"client": "outside:outside → node2", "group": "node"}, "-A --since 1m"),
        ({"namespace": "$(reboot)", "service": "a\nb", "node": "--all"}, "-A --since 1m"),
    ],
)
def test_flows(query, command):
    made = WORDS.flows(ViewQuery(**query), 10_305.0)
    assert made == f"{HEAD} {command}"
    flows_command.make_context("flows", shlex.split(made)[3:])


def test_the_namespace_of_the_page():
    words = CommandWords("a b", "shop")
    assert words.flows(ViewQuery(), 0.0) == (
        "kubectl ebpflb flows --context 'a b' -n shop --since 1m"
    )


def test_explain_drops_what_is_no_name():
    made = of_node("--all", flow(service="$(reboot)/web"))
    assert WORDS.explain(made, [made.node], AskedConnection("host", "[fd00::a]:53/tcp")) == (
        "kubectl ebpflb explain --context main host '[fd00::a]:53/tcp'"
    )
