# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb ui: follow all nodes, and serve the page until Ctrl-C."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click

from ebpflb.cli.agent_client import AGENT_DOWN
from ebpflb.cli.explain_words import AskedConnection
from ebpflb.cli.options import listed, namespace_options
from ebpflb.errors import ClusterError
from ebpflb.from_json import from_json
from ebpflb.kubectl.access import NONSENSE
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentQuestion
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.execution import argv_of
from ebpflb.kubectl.flows import last_flows
from ebpflb.kubectl.relay import Relay, RelayQuestion
from ebpflb.kubectl.relay_streams import RelayStreams
from ebpflb.kubectl.streams import Lines
from ebpflb.kubectl.top import carried
from ebpflb.kubectl.ui.active import ActiveConnections
from ebpflb.kubectl.ui.aside import Heard, aside
from ebpflb.kubectl.ui.commands import CommandWords
from ebpflb.kubectl.ui.explaining import answer_of_node, as_wide_as, explanation
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.pages import PageExplanation, PageSources, pages_of
from ebpflb.kubectl.ui.past import Past
from ebpflb.kubectl.ui.server import PageServer
from ebpflb.kubectl.ui.traffic import EdgeTraffic, KeptFlow
from ebpflb.model.flow import Flow, LostFlows, ServiceRate
from ebpflb.words.observe import FLOWS

_ExplainWith = Callable[[CommandWords, KeptFlow, AskedConnection], PageExplanation]

# What counts here is not a rate.
_SAMPLE_SECONDS = 0.5
# As wide as the page's panel.
_WIDTH = "52"
_ASK = ("env", f"COLUMNS={_WIDTH}", "ebpflb")


@click.command(
    epilog="""\b
The page is only served to this machine. Keep its address secret: it contains a token. It counts
flows from the start of the command, and keeps them for five minutes; of earlier ones it asks the
nodes. It shows all namespaces,
unless -n names one; of the relay you may need to name one that you may see.

\b
Examples:
  kubectl ebpflb ui
  kubectl ebpflb ui -n shop
  kubectl ebpflb ui --port 8001     # reach it by ssh -L 8001:127.0.0.1:8001 HOST
"""
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port on 127.0.0.1 to listen on.  [a free one]",
)
@namespace_options
@cluster_command
def ui(cluster: Cluster, port: int, **given: Any) -> None:
    """Show live in a browser who talks to whom, and what fails."""
    namespace = listed(given)
    traffic = EdgeTraffic()
    following, explain = cluster.through(
        partial(_through_the_relay, traffic, cluster, namespace),
        partial(_of_the_nodes, traffic, cluster, namespace),
    )
    sources = _sources(cluster, namespace, traffic, following, explain)
    with as_wide_as(_WIDTH), PageServer(pages_of(sources), port) as server:
        following.start()
        click.echo(server.url)
        click.echo(
            "Open this address in a browser on this machine. Press Ctrl-C to stop.", err=True
        )
        try:
            server.wait()
        finally:
            following.stop()


def _sources(
    cluster: Cluster,
    namespace: str,
    traffic: EdgeTraffic,
    following: Following,
    explain: _ExplainWith,
) -> PageSources:
    words = CommandWords(cluster.access.context, namespace)

    def flows(wanted: Mapping[str, str]) -> Heard[list[Flow | LostFlows]]:
        given = {**wanted, "namespace": namespace}
        return aside(cluster, lambda asked: list(last_flows(asked, given, namespace)))

    def rates() -> Heard[list[ServiceRate]]:
        return aside(cluster, lambda asked: carried(asked, _SAMPLE_SECONDS, namespace))

    return PageSources(
        traffic,
        following,
        Past(flows),
        ActiveConnections(rates),
        partial(explain, words),
        words,
        ", ".join(filter(None, (namespace, cluster.access.cluster))),
    )


def _through_the_relay(
    traffic: EdgeTraffic, cluster: Cluster, namespace: str, relay: Relay
) -> tuple[Following, _ExplainWith]:
    question = cluster.of_nodes(RelayQuestion(FLOWS, namespace))
    streams = RelayStreams(partial(relay.follow, question))
    streams.open()
    return Following(traffic, streams), partial(explanation, cluster)


def _of_the_nodes(
    traffic: EdgeTraffic, cluster: Cluster, namespace: str
) -> tuple[Following, _ExplainWith]:
    nodes = _Nodes(cluster, namespace)
    return Following(traffic, nodes.find), partial(answer_of_node, nodes.run)


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The current agents by node. namespace: whose flows are followed; empty for all."""

    cluster: Cluster
    namespace: str

    def find(self) -> Mapping[str, Lines]:
        """How to follow each node. ClusterError."""
        self.cluster.look_again()
        return {agent.node: partial(self._follow, agent) for agent in self.cluster.agents}

    def _follow(self, agent: RemoteAgent) -> Generator[str, None, None]:
        """The node's flows. ClusterError says whether it is served without its agent."""
        question = AgentQuestion("flows", {"follow": True, "namespace": self.namespace})
        try:
            yield from self.cluster.executor.stream(agent, argv_of(question))
        except ClusterError as error:
            shown = self._without_agent(agent)
            raise ClusterError(f"{shown}; {error}" if shown else str(error)) from error

    def _without_agent(self, agent: RemoteAgent) -> str:
        """In the words of `ebpflb status`; empty if there is an agent, or no answer."""
        answer = self.cluster.executor.answer(agent, AgentQuestion("status"))
        try:
            status = from_json(answer.stdout)
            return str(status["shown"]) if status["state"] == AGENT_DOWN else ""
        except NONSENSE:
            return ""

    def run(self, node: str, arguments: Sequence[str]) -> str:
        """The output of `ebpflb` on the node. ClusterError."""
        agent = next((each for each in self.cluster.agents if each.node == node), None)
        if agent is None:
            raise ClusterError(f"{node}: the node is gone")
        answer = self.cluster.executor.run(agent, [*_ASK, *arguments])
        if answer.status is None:
            raise ClusterError(f"{node}: {answer.error}")
        return f"{answer.stdout}{answer.stderr}"
