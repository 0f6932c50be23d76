# SPDX-License-Identifier: Apache-2.0
"""A relay behind the API server, and commands that may ask it."""

import json
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

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


@dataclass
class FakeRelay:
    """Answers at the paths of a resource. failures: in all answers."""

    objects: Objects
    failures: dict[str, list[str]] = field(default_factory=dict)

    def say(self, resource, items, place=DEFAULT, **others):
        answer = {"apiVersion": API_VERSION, "kind": f"{KINDS[resource]}List", "metadata": {}}
        answer |= {"items": items, "failures": self.failures, **others}
        self.objects.texts[f"{PATH}/{place}{resource}"] = json.dumps(answer)

    def refuse(self, resource, status, message="", place=DEFAULT):
        """Refuse from now on."""
        self.objects.refused[f"{PATH}/{place}{resource}"] = status, message
        # What the API server itself says of the group.
        self.objects.texts[f"/apis/{GROUP}"] = json.dumps({"kind": "APIGroup"})

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
