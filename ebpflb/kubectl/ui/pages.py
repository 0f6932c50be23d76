# SPDX-License-Identifier: Apache-2.0
"""What the page may request."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ebpflb.cli.flows import frontend_of
from ebpflb.errors import ConfigError
from ebpflb.kubectl.flows import HIDDEN_ENDS, is_hidden
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.query import parse_query
from ebpflb.kubectl.ui.server import Pages
from ebpflb.kubectl.ui.traffic import KeptFlow, LiveTraffic
from ebpflb.kubectl.ui.view import View

# Runs `ebpflb` with these arguments on a node, and returns its output. EbpflbError.
Run = Callable[[str, Sequence[str]], str]


class PageExplanation(NamedTuple):
    """node: that has answered, or several. command: that prints the text."""

    node: str
    command: str
    text: str


# What happens to another connection like this one, from SRC to DST. EbpflbError.
Explain = Callable[[KeptFlow, str, str], PageExplanation]

# Addresses and names with their ports. Nothing else of a flow gets into a command.
_ARGUMENT = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:/\[\]-]*")
_LONGEST_NUMBER = 16


def pages_of(traffic: LiveTraffic, following: Following, run: Run, cluster: str) -> Pages:
    """With explanations of the node that recorded a flow. `cluster`: what people know it by."""

    def explain(kept: KeptFlow, source: str, target: str) -> PageExplanation:
        node, arguments = kept.flow.node, ["explain", source, target]
        return PageExplanation(node, " ".join(["ebpflb", *arguments]), run(node, arguments))

    return pages_with(traffic, following, explain, cluster)


def pages_with(traffic: LiveTraffic, following: Following, ask: Explain, cluster: str) -> Pages:
    """`cluster`: what people know it by."""

    def view(given: Mapping[str, str]) -> Any:
        return {
            **View(traffic, parse_query(given)).map_and_table(),
            "cluster": cluster,
            "nodes": following.nodes(),
            "trouble": following.trouble,
        }

    def line(given: Mapping[str, str]) -> Any:
        return View(traffic, parse_query(given)).open_line()

    def explain(given: Mapping[str, str]) -> Any:
        number = given.get("flow", "")
        if not (number.isascii() and number.isdigit() and len(number) < _LONGEST_NUMBER):
            raise ConfigError("flow: the number of a flow is missing")
        found = traffic.flow(int(number))
        if found is None:
            raise ConfigError("this flow is no longer kept: choose a later one")
        return ask(found, *explain_arguments(found))._asdict()

    return {"view": view, "line": line, "explain": explain}


def explain_arguments(kept: KeptFlow) -> tuple[str, str]:
    """SRC and DST. ConfigError if an end of the flow is unknown, hidden or invalid.

    A refused connect() may be recorded without its client: a process on the node then stands for
    the pod, because the same happens to both.
    """
    if is_hidden(kept.flow):
        raise ConfigError(f"explain: {HIDDEN_ENDS}")
    client = kept.flow.client
    nobody = "host" if kept.edge.client.kind == "cluster" else ""
    asker = (client.pod or client.address) if client else nobody
    target = frontend_of(kept.flow).lower()
    for each in (asker, target):
        if not _ARGUMENT.fullmatch(each):
            raise ConfigError(f"explain: {each[:60]!r} is neither an address nor a name")
    return asker, target
