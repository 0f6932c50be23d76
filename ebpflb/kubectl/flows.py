# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb flows: who connects to what through any node, and how it went."""

import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import nlargest
from math import inf
from typing import Any, NamedTuple

import click
from msgspec import Raw
from msgspec.json import Decoder

from ebpflb.cli.flows import check_output, filter_options, parameters, show
from ebpflb.errors import ClusterError
from ebpflb.from_json import JsonError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT, AgentQuestion, AskedAgents, last_line
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.execution import argv_of
from ebpflb.kubectl.relay import Relay, RelayQuestion
from ebpflb.kubectl.relay_streams import RelayStreams
from ebpflb.kubectl.streams import Lines, NodeStreams, Streams, StreamState
from ebpflb.model.flow import Flow, LostFlows, read_flow
from ebpflb.words.observe import FLOWS

HIDDEN_ENDS = "you may not see who this connection is from, or where it goes"

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
        found = _followed(cluster, wanted)
    else:
        found = last_flows(cluster, wanted, wanted.get("namespace", ""))
    show(found, given, nodes=True)


def last_flows(
    cluster: Cluster, wanted: Mapping[str, str], namespace: str
) -> Iterator[Flow | LostFlows]:
    """As recent(), of the relay, if it answers. ConfigError, ClusterError.

    `namespace`: in which the relay is asked; empty for all.
    """
    parameters = {name: text for name, text in wanted.items() if name != "namespace"}
    return cluster.asked(
        RelayQuestion(FLOWS, namespace, parameters),
        lambda items: iter(_of_items(items)),
        lambda: recent(cluster, wanted),
    )


def _of_items(items: bytes) -> list[Flow | LostFlows]:
    return [read_flow(bytes(each)) for each in _items_decoder.decode(items)]


def recent(cluster: AskedAgents, wanted: Mapping[str, str]) -> Iterator[Flow | LostFlows]:
    """The last flows of all nodes, or all, oldest first. Keeps no more than the limit in memory.

    `wanted`: the parameters of the agents' query.
    """
    found, limit = _asked(cluster, wanted), wanted.get("limit")
    if limit is None:
        return iter(sorted(found, key=_time))
    return reversed(nlargest(int(limit), found, key=_time))


def _time(found: Flow | LostFlows) -> str:
    return found.time if isinstance(found, Flow) else ""


def _asked(cluster: AskedAgents, wanted: Mapping[str, str]) -> Iterator[Flow | LostFlows]:
    for answer in cluster.ask(AgentQuestion("flows", wanted)):
        if answer.status:
            complaint = last_line(answer.stderr) or f"exit status {answer.status}"
            cluster.note(answer.agent.node, complaint)
        yield from _decoded(cluster, answer.agent.node, answer.stdout.splitlines())


class _FollowedFlows(NamedTuple):
    """nodes: with an agent, as far as is known by now. earlier: flows to be shown first."""

    streams: NodeStreams
    nodes: Callable[[], Collection[str]]
    earlier: Sequence[Flow | LostFlows] = ()


def _followed(cluster: Cluster, wanted: Mapping[str, str]) -> Iterator[Flow | LostFlows]:
    found = cluster.through(
        partial(_through_the_relay, cluster, wanted), partial(_of_the_agents, cluster, wanted)
    )
    reports = _Reports(cluster, found)
    try:
        yield from found.earlier
        shown = set(map(_identity, found.earlier))
        for node, what in found.streams:
            if isinstance(what, StreamState):
                reports.note(node, what)
                continue
            for flow in _decoded(cluster, node, [what]):
                if shown and (identity := _identity(flow)) in shown:
                    shown.remove(identity)
                else:
                    yield flow
    finally:
        found.streams.stop()


def _identity(found: Flow | LostFlows) -> object:
    """time: agents that begin anew count from 0 again."""
    return (found.node, found.seq, found.time) if isinstance(found, Flow) else None


def _through_the_relay(cluster: Cluster, wanted: Mapping[str, str], relay: Relay) -> _FollowedFlows:
    """Begins to follow before it asks for earlier flows, so that none is missing in between."""
    given = {name: text for name, text in wanted.items() if name != "namespace"}
    filters = {name: text for name, text in given.items() if name not in ("limit", "since")}
    question = cluster.of_nodes(RelayQuestion(FLOWS, wanted.get("namespace", ""), filters))
    streams = RelayStreams(partial(relay.follow, question))
    streams.start()
    earlier: Sequence[Flow | LostFlows] = ()
    try:
        if wanted.get("limit") != "0":
            parameters = {**question.parameters, **given}
            earlier, failures = relay.ask(question._replace(parameters=parameters), _of_items)
            _tell_failures(cluster, failures)
    except BaseException:
        streams.stop()
        raise
    return _FollowedFlows(streams, lambda: streams.followed, earlier)


def _tell_failures(cluster: Cluster, failures: Mapping[str, Sequence[str]]) -> None:
    for error, nodes in sorted(failures.items()):
        for node in nodes if error != NO_AGENT else ():
            cluster.tell(node, error)


def _of_the_agents(cluster: Cluster, wanted: Mapping[str, str]) -> _FollowedFlows:
    agents = _FollowedAgents(cluster, argv_of(AgentQuestion("flows", {**wanted, "follow": True})))
    streams = Streams(agents.find)
    streams.start()
    return _FollowedFlows(streams, lambda: agents.nodes)


class _FollowedAgents:
    """How to follow each node's agent. nodes: that have or had one."""

    def __init__(self, cluster: Cluster, argv: Sequence[str]) -> None:
        """`argv`: for the agents at the start. Later ones are asked for all they have in memory."""
        self._cluster, self._argv = cluster, argv
        self._first = {agent.pod for agent in cluster.agents}
        self._begun: set[str] = set()
        self.nodes: set[str] = set()

    def find(self) -> Mapping[str, Lines]:
        """How to follow the current agents. ClusterError."""
        self._cluster.look_again()
        found = {each.node: each for each in self._cluster.agents if each.pod}
        self.nodes |= found.keys()
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


class _Reports:
    """Tells the user once when a node breaks off, and when it is back."""

    def __init__(self, cluster: Cluster, followed: _FollowedFlows) -> None:
        self._cluster, self._nodes = cluster, followed.nodes
        self._running: set[str] = set()
        self._silent: set[str] = set()
        self._ran = -inf

    def note(self, node: str, state: StreamState) -> None:
        """ClusterError if no node can be followed any more."""
        if state.runs:
            self._ran = time.monotonic()
            self._running.add(node)
            if node in self._silent:
                self._silent.remove(node)
                self._cluster.tell(node, "following again")
            return
        if node in self._running:
            self._running.remove(node)
            self._ran = time.monotonic()
        if node not in self._silent and state.why != NO_AGENT:
            self._silent.add(node)
            self._cluster.tell(node, f"not following for now: {state.why}")
        is_silent = self._silent.issuperset(self._nodes())
        if is_silent and time.monotonic() - self._ran > _PATIENCE_SECONDS:
            raise ClusterError("cannot follow any agent")


def _decoded(cluster: AskedAgents, node: str, lines: Iterable[str]) -> Iterator[Flow | LostFlows]:
    """The flows, with the node added."""
    for line in lines:
        try:
            found = read_flow(line)
        except JsonError as error:
            cluster.note(node, f"a flow that this version cannot read ({error!r:.60})")
        else:
            found.node = node
            yield found


def is_hidden(flow: Flow) -> bool:
    """Whether the relay has left out who the client is, or where it connects to."""
    is_unnamed = flow.client is not None and is_redacted(flow.client.pod)
    return is_unnamed or not flow.frontend.address


def is_redacted(pod: str) -> bool:
    """Whether this stands for the name of a pod, NAMESPACE/NAME, that the relay has left out."""
    return bool(pod) and "/" not in pod
