# SPDX-License-Identifier: Apache-2.0
"""What the page may request."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ebpflb.cli.flows import frontend_of
from ebpflb.errors import ConfigError
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.query import parse_query
from ebpflb.kubectl.ui.server import Pages
from ebpflb.kubectl.ui.traffic import KeptFlow, LiveTraffic
from ebpflb.kubectl.ui.view import View

# Runs `ebpflb` with these arguments on a node, and returns its output. EbpflbError.
Run = Callable[[str, Sequence[str]], str]

# Addresses and names with their ports. Nothing else of a flow gets into a command.
_ARGUMENT = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:/\[\]-]*")
_LONGEST_NUMBER = 16


def pages_of(traffic: LiveTraffic, following: Following, run: Run, cluster: str) -> Pages:
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
        node, arguments = explain_arguments(found)
        return {
            "node": node,
            "command": " ".join(["ebpflb", *arguments]),
            "text": run(node, arguments),
        }

    return {"view": view, "line": line, "explain": explain}


def explain_arguments(kept: KeptFlow) -> tuple[str, list[str]]:
    """The node to ask, and the arguments. ConfigError if an end of the flow is unknown or invalid.

    A refused connect() may be recorded without its client: a process on the node then stands for
    the pod, because the same happens to both.
    """
    client = kept.flow.client
    nobody = "host" if kept.edge.client.kind == "cluster" else ""
    asker = (client.pod or client.address) if client else nobody
    target = frontend_of(kept.flow).lower()
    for each in (asker, target):
        if not _ARGUMENT.fullmatch(each):
            raise ConfigError(f"explain: {each[:60]!r} is neither an address nor a name")
    return kept.flow.node, ["explain", asker, target]
