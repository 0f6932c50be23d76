# SPDX-License-Identifier: Apache-2.0
"""A relay behind the API server, and commands that may ask it."""

import json
import queue
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

from ebpflb.model.flow import FollowedNode, watch_line
from ebpflb.words.observe import (
    API_VERSION,
    CONNECTIONS,
    EXPLANATIONS,
    FLOWS,
    FRONTENDS,
    GROUP,
    KINDS,
    PATH,
    RATES,
)
from tests.unit.cli.explained import FRONTEND, answered
from tests.unit.cli.explained import backend as explained_backend
from tests.unit.kubectl.answers import (
    backend,
    compact_services,
    compact_top,
    connection,
    flow,
    frontend,
    lines,
    service,
)
from tests.unit.kubectl.api_server import Objects

DEFAULT = "namespaces/default/"
FORBIDDEN = 'User "me" cannot list resource "frontends" in API group "observe.ebpflb.io"'
LOCAL = {"type": "NodePort", "address": "0.0.0.0", "external_policy": "Local"}
COMMANDS = {
    FRONTENDS: (["services"], 1),
    RATES: (["top", "--backends"], 0),
    FLOWS: (["flows"], 0),
    CONNECTIONS: (["connections"], 0),
    EXPLANATIONS: (["explain", "host", "web"], 1),
}
"""Resource -> a command, and its exit status with these nodes."""


class FakeWatch:
    """Whoever connects last is streamed what is told. connected: how many are; begun: have been."""

    def __init__(self):
        self._queue: queue.Queue[bytes | Exception | None] = queue.Queue()
        self.begun, self.connected = 0, 0

    def tell(self, *found):
        """Flows, FollowedNodes, or raw lines."""
        for each in found:
            if isinstance(each, FollowedNode):
                self._queue.put(watch_line(each))
            elif isinstance(each, bytes):
                self._queue.put(each)
            else:
                event = {"type": "ADDED", "object": each}
                self._queue.put(json.dumps(event).encode() + b"\n")

    def end(self):
        """End the stream as HTTP does."""
        self._queue.put(None)

    def break_off(self):
        self._queue.put(ConnectionResetError())

    def pieces(self, _query):
        self.begun += 1
        self.connected += 1
        mine = self.begun
        try:
            while mine == self.begun:
                try:
                    found = self._queue.get(timeout=0.02)
                except queue.Empty:
                    yield None
                    continue
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    return
                yield found
        finally:
            self.connected -= 1


@dataclass
class FakeRelay:
    """Answers at the paths of a resource. failures: in all answers."""

    objects: Objects
    failures: dict[str, list[str]] = field(default_factory=dict)

    def say(self, resource, items, place=DEFAULT, **others):
        answer = {"apiVersion": API_VERSION, "kind": f"{KINDS[resource]}List", "metadata": {}}
        answer |= {"items": items, "failures": self.failures, **others}
        self.objects.texts[f"{PATH}/{place}{resource}"] = json.dumps(answer)

    def watched(self, place=DEFAULT):
        """Have it stream what the result is told."""
        made = FakeWatch()
        self.objects.streams[f"{PATH}/{place}{FLOWS}"] = made.pieces
        return made

    def refuse(self, resource, status, message="", place=DEFAULT):
        """Refuse from now on."""
        self.objects.refused[f"{PATH}/{place}{resource}"] = status, message
        # What the API server itself says of the group.
        self.objects.texts[f"/apis/{GROUP}"] = json.dumps({"kind": "APIGroup"})

    def be_back(self, resource, place=DEFAULT):
        """Answer again."""
        del self.objects.refused[f"{PATH}/{place}{resource}"]

    def asked(self):
        """Path below that of the API, and parameters, of each request to it."""
        urls = map(urlsplit, self.objects.requested)
        return [
            (url.path.removeprefix(f"{PATH}/"), {k: v[0] for k, v in parse_qs(url.query).items()})
            for url in urls
            if url.path.startswith(PATH)
        ]


def say_everything(nodes):
    """Add three nodes that have something to say of everything."""
    nodes.add("a", "b", "c")
    here = frontend("10.1.0.1", "10.1.0.2", source_ranges=("192.0.2.0/24",))
    for name in "ac":
        served = frontend(outside="served", **LOCAL)
        nodes.say(name, "services", compact_services(here, served))
        answer = answered(frontend=FRONTEND, backends=[explained_backend()])
        nodes.say(name, "explain", answer)
    other = frontend("10.1.0.1", external_policy="Local", counts=(1, 1, 1, 1))
    nodes.say("b", "services", compact_services(other, frontend(outside="drop", **LOCAL)))
    busy = service(backend("10.1.0.1", 30.0), backend("fd00::2", pod="shop/web-1"), far=1.0)
    nodes.say("a", "top", compact_top(busy, service(name="api", troubles=["no endpoint"])))
    nodes.say("b", "top", compact_top(service(backend("10.1.0.1", 6.0), far=0.0)))
    nodes.say("a", "flows", lines(flow(1), flow(4), {"lost": 3}))
    nodes.say("b", "flows", lines(flow(2, pod=""), flow(3, verdict="refused", event="refused")))
    nodes.say("a", "connections", connection(1, age=5.0) + connection(2, age=50.0, removed=True))
    nodes.say("b", "connections", connection(3, age=20.0, pod="default/other"))
    nodes.say("c", "top", compact_top())
    for command in ("flows", "connections"):
        nodes.say("c", command, "")
    nodes.say("b", "explain", answered("refused", frontend=FRONTEND, why="no endpoint"), 1)


def by_exec(nodes, resource, output, *more, status=None):
    words, usual = COMMANDS[resource]
    given = [*words, *more, "-o", output, "--via", "exec"]
    return nodes.run(*given, status=usual if status is None else status)


def by_relay(nodes, resource, output, *more, via="auto", status=None):
    words, usual = COMMANDS[resource]
    given = [*words, *more, "-o", output, "--via", via]
    return nodes.run(*given, status=usual if status is None else status)
