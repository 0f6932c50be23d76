# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb status: whether every node is served, its version, and how full its maps are."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import click
from msgspec import Struct, convert

from ebpflb.cli.options import Output, output_option, watch_option
from ebpflb.cli.table import Column, TextTable
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentQuestion
from ebpflb.kubectl.cluster import Cluster, cluster_command, some
from ebpflb.model.agent_report import AgentReport

_SERVED = ("in sync", "not in sync")
_BECOME_FULL = ("hash", "percpu_hash")


class _MapFill(Struct):
    name: str
    type: str
    used: int
    max: int


class _Loaded(Struct):
    maps: list[_MapFill]
    dropped: dict[str, int]
    last_sync: str


class _StatusAnswer(Struct):
    """What `ebpflb status` prints, as far as it is read here."""

    state: str
    shown: str
    healthy: bool
    problems: list[str]
    agent: AgentReport | None
    loaded: _Loaded | None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """Fields that are not known are empty or None.

    shown: the state, and of when what the node serves is, if that is old. drops: packets refused or
    dropped, by reason. used: the share in use of fullest_map, one of the maps that do not evict
    entries.
    """

    node: str
    state: str
    shown: str
    version: str = ""
    last_change: str | None = None
    drops: Mapping[str, int] | None = None
    fullest_map: str = ""
    used: float | None = None
    services: int | None = None
    frontends: int | None = None
    pod: str = ""
    image: str = ""
    problems: tuple[str, ...] = ()


@click.command(
    epilog="""\b
  STATE        in sync; not in sync (a change is under way); agent down, or behind (changes do
               not reach the kernel), and of when (UTC) the state is that the node still serves;
               not served (hooks or maps are missing: the lines below say which); no answer;
               no agent
  LAST CHANGE  when the agent last wrote Services to the kernel
  DROPS        packets refused or dropped since the maps were created, and the main reason
  FULLEST MAP  how much of it is used, among the maps that do not evict entries

\b
Exit status 1 if a node is not served as it should be, or does not answer.

\b
Examples:
  kubectl ebpflb status
  kubectl ebpflb status -o wide
  kubectl ebpflb status -w
  kubectl ebpflb status -o json | jq -r '.[] | select(.state != "in sync") | .node'
"""
)
@watch_option
@output_option
@cluster_command
def status(cluster: Cluster, watch: bool, output: Output) -> None:
    """Show each node: version, sync state, drops and how full its maps are."""
    nodes = cluster.show(partial(_look, cluster), _lines, output, watch=watch)
    if any(each.state not in _SERVED for each in nodes):
        cluster.exit_status = 1


def _look(cluster: Cluster) -> list[NodeStatus]:
    cluster.find()
    found = {agent: _unanswered(agent) for agent in cluster.agents}
    for agent, answered in cluster.ask_json(AgentQuestion("status"), _of_answer):
        found[agent] = answered
    return list(found.values())


def _unanswered(agent: RemoteAgent) -> NodeStatus:
    state = "no answer" if agent.pod else "no agent"
    return NodeStatus(agent.node, state, state, pod=agent.pod, image=agent.image)


def _of_answer(agent: RemoteAgent, content: Any) -> NodeStatus:
    found = convert(content, _StatusAnswer)
    about, loaded = found.agent, found.loaded
    # Arrays have a fixed size, and LRU hashes evict entries.
    hashes = [each for each in loaded.maps if each.type in _BECOME_FULL] if loaded else []
    share, name = max(((each.used / each.max, each.name) for each in hashes), default=(None, ""))
    in_sync = "in sync" if about and about.in_sync else "not in sync"
    state = in_sync if found.healthy else found.state
    return NodeStatus(
        node=agent.node,
        state=state,
        shown=state if found.healthy else found.shown,
        version=about.version if about else "",
        last_change=(about and about.last_sync) or (loaded and loaded.last_sync) or None,
        drops={why: n for why, n in loaded.dropped.items() if n} if loaded else None,
        fullest_map=name,
        used=share,
        services=about.services if about else None,
        frontends=about.frontends if about else None,
        pod=agent.pod,
        image=agent.image,
        problems=tuple(found.problems),
    )


def _lines(nodes: Sequence[NodeStatus]) -> Iterator[str | TextTable[NodeStatus]]:
    """The table, and then each problem with the nodes that have it."""
    yield TextTable(COLUMNS, nodes)
    by_problem = defaultdict[str, list[str]](list)
    for node in nodes:
        for problem in node.problems:
            by_problem[problem].append(node.node)
    if by_problem:
        yield ""
    for problem, names in sorted(by_problem.items()):
        yield f"{some(names)}: {problem}"


def _drops(drops: Mapping[str, int] | None) -> str:
    if drops is None:
        return "-"
    chief = max(drops, key=lambda reason: drops[reason], default="")
    return f"{sum(drops.values())} {chief.replace('_', ' ')}".strip()


def _known(value: object) -> object:
    return "-" if value in (None, "") else value


def _last_change(node: NodeStatus) -> str:
    return (node.last_change or "-").partition(".")[0].removesuffix("Z").replace("T", " ")


def _fullest_map(node: NodeStatus) -> str:
    return "-" if node.used is None else f"{node.used:.0%} used, {node.fullest_map}"


COLUMNS: Sequence[Column[NodeStatus]] = (
    Column("NODE", lambda node: node.node),
    Column("STATE", lambda node: node.shown),
    Column("VERSION", lambda node: _known(node.version)),
    Column("LAST CHANGE", _last_change),
    Column("DROPS", lambda node: _drops(node.drops)),
    Column("FULLEST MAP", _fullest_map),
    Column("SERVICES", lambda node: _known(node.services), wide=True),
    Column("FRONTENDS", lambda node: _known(node.frontends), wide=True),
    Column("POD", lambda node: _known(node.pod), wide=True),
    Column("IMAGE", lambda node: _known(node.image), wide=True),
)
