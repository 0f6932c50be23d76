# SPDX-License-Identifier: Apache-2.0
"""What the page may request."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ebpflb.cli.explain_words import AskedConnection
from ebpflb.cli.flows import frontend_of
from ebpflb.errors import ConfigError
from ebpflb.kubectl.asking import NO_AGENT
from ebpflb.kubectl.flows import HIDDEN_ENDS, is_hidden
from ebpflb.kubectl.relay_streams import RELAY
from ebpflb.kubectl.ui.active import OF_THE_PAST, ActiveConnections
from ebpflb.kubectl.ui.commands import ARGUMENT, CommandWords
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.past import Moment, Past
from ebpflb.kubectl.ui.query import parse_query
from ebpflb.kubectl.ui.server import Pages
from ebpflb.kubectl.ui.traffic import EdgeTraffic, KeptFlow
from ebpflb.kubectl.ui.view import View

_LONGEST_NUMBER = 16


class PageExplanation(NamedTuple):
    """node: that has answered, or several. command: that prints the text.

    copied: what prints it on any machine with the plugin.
    """

    node: str
    command: str
    text: str
    copied: str


# What happens to another connection like this one, from SRC to DST. EbpflbError.
Explain = Callable[[KeptFlow, AskedConnection], PageExplanation]


class PageSources(NamedTuple):
    """Where what the page shows comes from. name: what people know the cluster by."""

    traffic: EdgeTraffic
    following: Following
    past: Past
    active: ActiveConnections
    explain: Explain
    words: CommandWords
    name: str

    def moment(self, until: int) -> Moment:
        """Of now, or of the past if `until` is not 0. EbpflbError."""
        nodes = self.following.nodes()
        if until:
            silent = [each["node"] for each in nodes if each["why"] == NO_AGENT]
            asked = {each["node"] for each in nodes}.difference(silent, [RELAY])
            return self.past.at(until, asked)
        trouble = self.following.trouble
        return Moment(self.traffic, nodes, trouble and f"Cannot look for new nodes: {trouble}")


def pages_of(sources: PageSources) -> Pages:
    """By name, as the page requests them."""

    def seen(given: Mapping[str, str], show: Callable[[View], dict[str, Any]]) -> dict[str, Any]:
        query = parse_query(given)
        moment = sources.moment(query.until)
        active = OF_THE_PAST if query.until else sources.active.read()
        found = show(View(moment.traffic, query, active))
        command = sources.words.flows(query, sources.past.now())
        return {
            **found,
            "command": command,
            "cluster": sources.name,
            "nodes": moment.nodes,
            "trouble": moment.trouble,
        }

    def view(given: Mapping[str, str]) -> Any:
        return seen(given, View.map_and_table)

    def line(given: Mapping[str, str]) -> Any:
        return seen(given, View.open_line)

    def explain(given: Mapping[str, str]) -> Any:
        number = given.get("flow", "")
        if not (number.isascii() and number.isdigit() and len(number) < _LONGEST_NUMBER):
            raise ConfigError("flow: the number of a flow is missing")
        until = parse_query({"until": given.get("until", "")}).until
        found = sources.moment(until).traffic.flow(int(number), given.get("id", ""))
        if found is None:
            raise ConfigError("this flow is no longer kept: choose a later one")
        return sources.explain(found, connection_of(found, is_past=bool(until)))._asdict()

    return {"view": view, "line": line, "explain": explain}


def connection_of(kept: KeptFlow, *, is_past: bool) -> AskedConnection:
    """What is to be explained, of now, or of when the flow was recorded.

    ConfigError if an end of the flow is unknown, hidden or invalid.

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
        if not ARGUMENT.fullmatch(each):
            raise ConfigError(f"explain: {each[:60]!r} is neither an address nor a name")
    return AskedConnection(asker, target, at=kept.flow.time if is_past else "")
