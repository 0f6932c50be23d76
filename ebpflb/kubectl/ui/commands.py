# SPDX-License-Identifier: Apache-2.0
"""The commands that show on a terminal what the page shows, to be copied."""

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.kubectl import NAME
from ebpflb.kubectl.ui.query import ViewQuery
from ebpflb.model.flow import Flow

# Addresses and names with their ports. Nothing else of a flow or a query gets into a command.
ARGUMENT = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:/\[\]-]*")


class CommandWords(NamedTuple):
    """context: of the kubeconfig. namespace: that the page shows; empty for all."""

    context: str
    namespace: str

    def flows(self, query: ViewQuery, now: float) -> str:
        """`kubectl ebpflb flows` with those filters that it has."""
        options = [*_filters(query), *_times(query, now)]
        return self._joined("flows", query.namespace or self.namespace, options)

    def explain(self, flow: Flow, nodes: Sequence[str], connection: AskedConnection) -> str:
        """`kubectl ebpflb explain`, on these nodes, or those that decide."""
        namespace = self.namespace or (flow.service.namespace if flow.service else "")
        options = [("--node", each) for each in nodes]
        if connection.at:
            options.append(("--at", connection.at))
        return self._joined("explain", namespace, options, connection.source, connection.target)

    def _joined(
        self, command: str, namespace: str, options: Iterable[tuple[str, str]], *ends: str
    ) -> str:
        given = [(name, value) for name, value in options if ARGUMENT.fullmatch(value)]
        if ARGUMENT.fullmatch(namespace):
            given.insert(0, ("-n", namespace))
        elif command == "flows":
            given.insert(0, ("-A", ""))
        words = [word for option in given for word in option if word]
        return f"{NAME} {shlex.join([command, '--context', self.context, *words, *ends])}"


def _filters(query: ViewQuery) -> Iterator[tuple[str, str]]:
    kind, _, name = query.via.partition(":")
    yield "--service", query.service or (name if kind == "service" and _is_name(name) else "")
    yield "--verdict", query.verdict
    yield "--node", query.node
    for option, group in (("--from", query.client), ("--to", query.target)):
        kind, _, name = group.partition(":")
        if kind == "pod" or (kind in ("cluster", "outside") and query.group == "pod"):
            yield option, name


def _is_name(service: str) -> bool:
    """Whether it is NAMESPACE/NAME, and not ADDRESS:PORT/PROTOCOL or the others."""
    return "/" in service and ":" not in service


def _times(query: ViewQuery, now: float) -> Iterator[tuple[str, str]]:
    ago = max(round(now - query.until), 0) if query.until else 0
    yield "--since", _duration(ago + query.window)
    if ago:
        yield "--until", _duration(ago)


def _duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    return f"{seconds}s" if rest else f"{minutes}m"
