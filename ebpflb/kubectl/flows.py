# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb flows: who connects to what through any node, and how it went."""

import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from math import inf
from typing import Any

import click
from msgspec import Raw
from msgspec.json import Decoder

from ebpflb.cli.flows import check_output, filter_options, parameters, show
from ebpflb.errors import ClusterError
from ebpflb.from_json import JsonError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import Asking, Question, last_line
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.execution import argv_of
from ebpflb.kubectl.relay import RelayQuestion
from ebpflb.kubectl.streams import Lines, Streams, StreamState
from ebpflb.model.flow import Flow, LostFlows, read_flow
from ebpflb.words.observe import FLOWS

# More than any agent has in memory.
_EVERYTHING = "1048576"
# How long all nodes may stay silent, as while the agents are being replaced.
_PATIENCE_SECONDS = 300.0
_items_decoder = Decoder(list[Raw])


@click.command(
    epilog="""\b
Without --last or --since, it shows the last 20 flows, or only new ones with --follow.
It shows flows to the Services of one namespace, and from or to its pods: that of -n, or of the
kubeconfig; -A shows all. Times are those of the nodes' clocks. `ebpflb flows --help` describes
the verdicts.

\b
Examples:
  kubectl ebpflb flows
  kubectl ebpflb flows -A --follow --verdict failed,refused,dropped
  kubectl ebpflb flows -n shop --service web --since 5m
  kubectl ebpflb flows -A -o jsonl | jq 'select(.rtt_seconds > 0.1) | .node'
"""
)
@filter_options
@cluster_command
def flows(cluster: Cluster, **given: Any) -> None:
    """Show recent flows on all nodes, oldest first."""
    check_output(given)
    wanted = parameters(given, cluster.namespace)
    follows = bool(wanted.pop("follow", ""))
    if follows:
        cluster.find()
        found = _followed(cluster, wanted)
    else:
        found = last_flows(cluster, wanted, wanted.get("namespace", ""))
    show(found, given["output"], follow=follows, nodes=True)


def last_flows(
    cluster: Cluster, wanted: Mapping[str, str], namespace: str
) -> Iterator[Flow | LostFlows]:
    """As recent(), of the relay, if it answers. ConfigError, ClusterError.

    `namespace`: in which the relay is asked; empty for all.
    """
    parameters = {name: text for name, text in wanted.items() if name != "namespace"}
    return cluster.asked(
        RelayQuestion(FLOWS, namespace, parameters),
        lambda items: iter([read_flow(bytes(each)) for each in _items_decoder.decode(items)]),
        lambda: recent(cluster, wanted),
    )


def recent(cluster: Asking, wanted: Mapping[str, str]) -> Iterator[Flow | LostFlows]:
    """The last flows of all nodes, or all, oldest first. Keeps no more than the limit in memory.

    `wanted`: the parameters of the agents' query.
    """
    found, limit = _asked(cluster, wanted), wanted.get("limit")
    if limit is None:
        return iter(sorted(found, key=_time))
    return reversed(nlargest(int(limit), found, key=_time))


def _time(found: Flow | LostFlows) -> str:
    return found.time if isinstance(found, Flow) else ""


def _asked(cluster: Asking, wanted: Mapping[str, str]) -> Iterator[Flow | LostFlows]:
    for answer in cluster.ask(Question("flows", wanted)):
        if answer.status:
            complaint = last_line(answer.stderr) or f"exit status {answer.status}"
            cluster.note(answer.agent, complaint)
        yield from _decoded(cluster, answer.agent, answer.stdout.splitlines())


def _followed(cluster: Cluster, wanted: Mapping[str, str]) -> Iterator[Flow | LostFlows]:
    watch = _Watch(cluster, argv_of(Question("flows", {**wanted, "follow": True})))
    streams = Streams(watch.find)
    streams.start()
    try:
        for node, what in streams:
            if isinstance(what, StreamState):
                watch.note(node, what)
            else:
                yield from _decoded(cluster, watch.agents[node], [what])
    finally:
        streams.stop()


class _Watch:
    """The agents being followed, and the state last reported to the user."""

    def __init__(self, cluster: Cluster, argv: Sequence[str]) -> None:
        """`argv`: for the agents at the start. Later ones are asked for all they have in memory."""
        self._cluster, self._argv = cluster, argv
        self._first = {agent.pod for agent in cluster.agents}
        self._begun: set[str] = set()
        self._running: set[str] = set()
        self._silent: set[str] = set()
        self._ran = -inf
        self.agents: dict[str, RemoteAgent] = {}

    def find(self) -> Mapping[str, Lines]:
        """How to follow the current agents. ClusterError."""
        self._cluster.look_again()
        found = {each.node: each for each in self._cluster.agents if each.pod}
        # Lines from nodes that are gone may still arrive.
        self.agents |= found
        return {node: partial(self._follow, agent) for node, agent in found.items()}

    def _follow(self, agent: RemoteAgent) -> Generator[str, None, None]:
        argv = self._argv
        if agent.pod in self._begun or agent.pod not in self._first:
            extent = "--last=0" if agent.pod in self._begun else f"--last={_EVERYTHING}"
            others = [each for each in argv if not each.startswith(("--last=", "--since="))]
            argv = [*others, extent]
        for line in self._cluster.executor.stream(agent, argv):
            self._begun.add(agent.pod)
            yield line

    def note(self, node: str, state: StreamState) -> None:
        """Report once when a node breaks off and when it is back. ClusterError if all do."""
        agent = self.agents[node]
        if state.runs:
            self._running.add(node)
            if node in self._silent:
                self._silent.remove(node)
                self._cluster.tell(agent, "following again")
            return
        if node in self._running:
            self._running.remove(node)
            self._ran = time.monotonic()
        if node not in self._silent:
            self._silent.add(node)
            self._cluster.tell(agent, f"not following for now: {state.why}")
        if self._silent >= self.agents.keys() and time.monotonic() - self._ran > _PATIENCE_SECONDS:
            raise ClusterError("cannot follow any agent")


def _decoded(
    cluster: Asking, agent: RemoteAgent, lines: Iterable[str]
) -> Iterator[Flow | LostFlows]:
    """The flows, with the node added."""
    for line in lines:
        try:
            found = read_flow(line)
        except JsonError as error:
            cluster.note(agent, f"a flow that this version cannot read ({error!r:.60})")
        else:
            found.node = agent.node
            yield found
