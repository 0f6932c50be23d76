# SPDX-License-Identifier: Apache-2.0
"""Flows as agents print them, and a fake cluster whose agents print what a test gives them."""

import json
import queue
from collections.abc import Generator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from ebpflb.errors import QueryError
from ebpflb.kubectl.streams import Lines
from ebpflb.model.flow import Flow, read_flow


def flow(
    client: Any = "shop/cart-7d4b9c6f5-x2x4z",
    service: str = "shop/web",
    backend: str = "shop/web-6c8f9d7b5-bcdfg",
    **others: Any,
) -> dict[str, Any]:
    """A connection that ended normally; `others` replace fields, and None removes them."""
    namespace, _, name = service.partition("/")
    made = {
        "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z"),
        "event": "end",
        "verdict": "forwarded",
        "ended": "closed",
        "protocol": "TCP",
        "family": "IPv4",
        "path": "socket",
        "client": {"address": "10.1.0.4", "port": 40000, "pod": client}
        if isinstance(client, str)
        else client,
        "frontend": {"address": "10.96.0.10", "port": 80, "type": "ClusterIP"},
        "service": {"namespace": namespace, "name": name},
        "backend": {
            "address": "10.1.1.5",
            "port": 8080,
            "pod": backend,
            "node": "node2",
            "zone": "zone-b",
        },
        "source": "this_node",
        "seconds": 0.02,
        "bytes": {"original": 100, "reply": 2000},
        "rtt_seconds": 0.0004,
        "seq": 1,
        **others,
    }
    return {field: value for field, value in made.items() if value is not None}


def failed(**given: Any) -> dict[str, Any]:
    return flow(
        **{"verdict": "failed", "ended": "no_answer", "bytes": None, "rtt_seconds": None, **given}
    )


def refused(reason: str = "no_endpoint", **given: Any) -> dict[str, Any]:
    return _without_backend("refused", reason, given)


def dropped(reason: str = "source_range", **given: Any) -> dict[str, Any]:
    return _without_backend("dropped", reason, given)


def _without_backend(verdict: str, reason: str, given: dict[str, Any]) -> dict[str, Any]:
    nothing = dict.fromkeys(("ended", "seconds", "bytes", "rtt_seconds"))
    made = flow(**{**nothing, "event": verdict, "verdict": verdict, "reason": reason, **given})
    return {field: value for field, value in made.items() if field != "backend"}


def of_node(node: str, made: dict[str, Any]) -> Flow:
    """As read from the node's agent."""
    found = read_flow(json.dumps(made))
    assert isinstance(found, Flow)
    found.node = node
    return found


class FakeAgents:
    """A queue of lines for each node; an exception in it breaks the stream, nothing else ends it.

    None ends this stream and every later one.
    """

    def __init__(self, *nodes: str) -> None:
        self._queues: dict[str, queue.Queue[str | Exception | None]] = {}
        for node in nodes:
            self.add(node)

    def find(self) -> dict[str, Lines]:
        return {node: partial(_lines, waiting) for node, waiting in list(self._queues.items())}

    def add(self, node: str) -> None:
        self._queues[node] = queue.Queue()

    def send(self, node: str, *flows: object) -> None:
        for each in flows:
            line = each if isinstance(each, str) else json.dumps(each)
            self._queues[node].put(f"{line}\n")

    def fail(self, node: str, why: str, kind: type[Exception] = QueryError) -> None:
        self._queues[node].put(kind(why))

    def stop(self, node: str) -> None:
        self._queues[node].put("")

    def remove(self, node: str) -> None:
        """The node is removed, and with it the connection to its agent."""
        self._queues.pop(node).put(None)

    def end(self) -> None:
        for node in list(self._queues):
            self.remove(node)


def _lines(waiting: queue.Queue[str | Exception | None]) -> Generator[str, None, None]:
    while line := waiting.get():
        if isinstance(line, Exception):
            raise line
        yield line.removesuffix("\n")
    if line is None:
        waiting.put(None)
