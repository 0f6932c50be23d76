# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb ui: follow all nodes, and serve the page until Ctrl-C."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import click

from ebpflb.cli.agent_client import AGENT_DOWN
from ebpflb.errors import ClusterError
from ebpflb.from_json import from_json
from ebpflb.kubectl.access import NONSENSE
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import Question
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.execution import argv_of
from ebpflb.kubectl.streams import Lines
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.pages import pages_of
from ebpflb.kubectl.ui.server import PageServer
from ebpflb.kubectl.ui.traffic import LiveTraffic

_FOLLOW = Question("flows", {"follow": True})
# As wide as the page's panel.
_ASK = ("env", "COLUMNS=52", "ebpflb")


@click.command(
    epilog="""\b
The page is only served to this machine. Keep its address secret: it contains a token. It counts
flows from the start of the command, and keeps them for five minutes.

\b
Examples:
  kubectl ebpflb ui
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
@cluster_command
def ui(cluster: Cluster, port: int) -> None:
    """Show live in a browser who talks to whom, and what fails."""
    cluster.find()
    nodes = _Nodes(cluster)
    traffic = LiveTraffic()
    following = Following(traffic, nodes.find)
    with PageServer(
        pages_of(traffic, following, nodes.run, cluster.access.cluster), port
    ) as server:
        following.start()
        click.echo(server.url)
        click.echo(
            "Open this address in a browser on this machine. Press Ctrl-C to stop.", err=True
        )
        try:
            server.wait()
        finally:
            following.stop()


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The current agents by node."""

    cluster: Cluster

    def find(self) -> Mapping[str, Lines]:
        """How to follow each node. ClusterError."""
        self.cluster.look_again()
        return {agent.node: partial(self._follow, agent) for agent in self.cluster.agents}

    def _follow(self, agent: RemoteAgent) -> Generator[str, None, None]:
        """The node's flows. ClusterError says whether it is served without its agent."""
        try:
            yield from self.cluster.executor.stream(agent, argv_of(_FOLLOW))
        except ClusterError as error:
            shown = self._without_agent(agent)
            raise ClusterError(f"{shown}; {error}" if shown else str(error)) from error

    def _without_agent(self, agent: RemoteAgent) -> str:
        """In the words of `ebpflb status`; empty if there is an agent, or no answer."""
        answer = self.cluster.executor.answer(agent, Question("status"))
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
