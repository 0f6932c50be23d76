# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb explain: what happens to a connection, according to the nodes that handle it.

Answers that differ from node to node are a matrix of nodes and endpoints, and then texts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import click
from msgspec import convert
from rich.errors import ConsoleError

from ebpflb.cli.explain_text import (
    CANNOT_TELL,
    FAILS,
    NOT_A_SERVICE,
    WORKS,
    WORKS_PARTLY,
    ExplainCommand,
    Outcome,
    exit_status,
    headline,
    outcome_of,
    possible_backends,
    problem,
    rendered,
)
from ebpflb.cli.explain_words import AskedConnection
from ebpflb.cli.options import (
    Output,
    at_option,
    complete_service,
    name_namespace_option,
    output_option,
)
from ebpflb.cli.render import emit, terminal_width
from ebpflb.cli.table import Column, TextTable, visible
from ebpflb.config.values import socket_address
from ebpflb.errors import ConfigError
from ebpflb.from_json import from_json
from ebpflb.kubectl.access import NONSENSE
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentQuestion, AskedAgents
from ebpflb.kubectl.cluster import Cluster, cluster_command, some
from ebpflb.kubectl.questions import NodeQuestion, client_written, questions, written
from ebpflb.kubectl.relay import RelayQuestion
from ebpflb.words.observe import EXPLANATIONS

# The overall exit status is the first of these that any node has.
GRAVEST = (FAILS, CANNOT_TELL, WORKS_PARTLY, NOT_A_SERVICE, WORKS)

Found = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerOfNodes:
    """Nodes with the same answer. status: as an exit status. source, target: of the question."""

    status: int
    outcome: Outcome
    source: str
    target: str
    answer: Found
    nodes: list[str] = field(default_factory=list)


@click.command(
    cls=ExplainCommand,
    epilog="""\b
SRC  default/web-0   a pod, by name: asks its node
     10.1.0.5        an address of a pod or node: asks that node; for a client outside the
                     cluster, asks every node, because any may get its packets
     host            a process on the node itself: asks every node
DST  default/web, web:http, web.default.svc:80, 10.96.0.10:80; TCP unless /udp or /sctp follows
     For a client outside, a Service's name means its load-balancer and external IPs, or its
     NodePort on each node.
Names without a namespace are looked up in that of -n, or of the kubeconfig.

\b
Exit status:
  0  works on all nodes that were asked
  1  fails or likely fails on a node, as in `ebpflb explain`
  2  usage error
  3  unknown: an error, or a node's kernel and its agent's model differ
  4  not a Service address: passes unchanged
  5  works for some of a node's possible backends, as in `ebpflb explain`

\b
Examples:
  kubectl ebpflb explain shop/cart-0 shop/web
  kubectl ebpflb explain 198.51.100.7 web:https
  kubectl ebpflb explain host kubernetes -n default -o json | jq '.[] | .outcome, .nodes'
""",
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST", shell_complete=complete_service)
@at_option
@name_namespace_option
@output_option
@cluster_command
def explain(
    cluster: Cluster, source: str, target: str, output: Output, **given: str | None
) -> None:
    """Explain what happens to a connection from SRC to DST. It sends no packets.

    Nodes are listed together if they print the same. If not, a table shows for each node what
    becomes of the connection, and with what chance it goes to each endpoint; `!` marks those to
    which it fails. Below it is one answer for each line of the table, or all with -o wide.

    With --at, it tells what each node served at that moment, and which endpoints had failed.
    """
    home = given["namespace"] or cluster.namespace
    asked = AskedConnection(source, target, home, given["at"] or "")
    try:
        groups = explanations(cluster, asked)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    if output in ("table", "wide"):
        click.echo(text_of(cluster, groups, output))
    else:
        emit(groups, output, lambda: ())
    cluster.exit_status = _status(cluster, groups)


def explanations(
    cluster: Cluster, asked: AskedConnection, within: str | None = None
) -> list[AnswerOfNodes]:
    """As explained(), of the relay, if it answers.

    `within`: the namespace in which the relay is asked, empty for all; by default that of DST's
    Service, or else asked.home. ConfigError, ClusterError.
    """
    client, destination = asked.client, asked.destination
    if within is None:
        within = destination.end.name.namespace if destination.end.name else asked.home
    return cluster.asked(
        RelayQuestion(
            EXPLANATIONS,
            within,
            {"from": client_written(client), "to": written(destination), "at": asked.at},
        ),
        _of_items,
        lambda: explained(cluster, asked),
    )


def _of_items(items: bytes) -> list[AnswerOfNodes]:
    """From JSON; sorted as by explained(). ValueError."""
    groups = convert(from_json(items), list[AnswerOfNodes])
    if not all(group.nodes for group in groups):
        raise ValueError("an answer of no node")
    return sorted(groups, key=_rank)


def explained(cluster: AskedAgents, asked: AskedConnection) -> list[AnswerOfNodes]:
    """Most severe first, then by the number of nodes. ConfigError, ClusterError."""
    with cluster.access.reading():
        left = questions(cluster, asked)
    options = {"at": asked.at} if asked.at else {}
    found: dict[object, AnswerOfNodes] = {}
    while left:
        # A node with several questions gets them one after the other.
        now = {each.agent: each for each in reversed(left)}
        left = [each for each in left if now[each.agent] != each]
        of_each = {
            agent: AgentQuestion("explain", options, each[1:]) for agent, each in now.items()
        }
        for answer in cluster.ask_each(of_each):
            for agent, (key, group) in cluster.decoded(answer, partial(_read, now)):
                group = found.setdefault(key, group)
                if agent.node not in group.nodes:
                    group.nodes.append(agent.node)
    for group in found.values():
        group.nodes.sort()
    return sorted(found.values(), key=_rank)


def _rank(group: AnswerOfNodes) -> tuple[int, int, list[str]]:
    return GRAVEST.index(group.status), -len(group.nodes), group.nodes


def _read(
    asked: Mapping[RemoteAgent, NodeQuestion], agent: RemoteAgent, answer: Any
) -> tuple[object, AnswerOfNodes]:
    """The key of an answer's group, and the group that it would start."""
    _, source, target = asked[agent]
    found = AnswerOfNodes(exit_status(answer), outcome_of(answer), source, target, answer)
    return (source, target, json.dumps(answer, sort_keys=True)), found


def text_of(cluster: AskedAgents, groups: Iterable[AnswerOfNodes], output: Output) -> str:
    """One answer if all nodes print the same, else a matrix and then answers of single nodes."""
    printed: dict[str, Printed] = {}
    for group in groups:
        try:
            text = rendered(group.answer, is_wide=output == "wide")
            found = printed.setdefault(text, Printed(text, row_of(group.answer)))
        except (*NONSENSE, ConsoleError) as error:
            what = f"an answer that this version cannot show ({error!r})"
            cluster.failures[what].update(group.nodes)
        else:
            found.nodes.update(group.nodes)
    every = list(printed.values())
    if len(every) > 1:
        return differing(every, output)
    return "".join(f"{on(each.nodes)}:\n\n{each.text}" for each in every)


def _status(cluster: Cluster, groups: Iterable[AnswerOfNodes]) -> int:
    found = {group.status for group in groups} | ({CANNOT_TELL} if cluster.has_failures else set())
    return next((each for each in GRAVEST if each in found), CANNOT_TELL)


class MatrixRow(NamedTuple):
    """What a node's answer comes to; chances: by endpoint, of those that it may choose."""

    headline: tuple[str, str]
    agree: bool | None
    chances: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Printed:
    """A text, and the nodes for which it is the same."""

    text: str
    row: MatrixRow
    nodes: set[str] = field(default_factory=set)


def row_of(answer: Mapping[str, Any]) -> MatrixRow:
    chances = {
        socket_address(each["address"], each["port"]): (
            f"{each['chance']:.0%}{' !' if problem(each) else ''}"
        )
        for each in possible_backends(answer["kernel"])
    }
    return MatrixRow(headline(answer), answer["agree"], chances)


def on(nodes: Iterable[str]) -> str:
    """On which nodes, and how many those are."""
    every = list(nodes)
    count = f" ({len(every)} nodes)" if len(every) > 1 else ""
    return f"On {_names(every)}{count}"


def _names(nodes: Iterable[str]) -> str:
    return str(visible(some(nodes)))


def differing(every: Sequence[Printed], output: Output) -> str:
    """The matrix, then a text for each of its rows; all texts if `output` is wide."""
    rows: list[list[Printed]] = []
    for each in every:
        same = next((row for row in rows if row[0].row == each.row), None)
        if same:
            same.append(each)
        else:
            rows.append([each])
    nodes = {node for each in every for node in each.nodes}
    table = TextTable(list(_columns(rows)), rows).lines(terminal_width(output))
    parts = [f"{on(nodes)}, whose answers differ:", "\n".join(table)]
    for row in rows:
        parts += _texts(row, is_wide=output == "wide")
    return "\n\n".join(parts)


def _columns(rows: Iterable[Sequence[Printed]]) -> Iterator[Column[list[Printed]]]:
    yield Column("NODE", lambda row: _names(node for each in row for node in each.nodes))
    yield Column("OUTCOME", _outcome)
    for name in sorted({name for row in rows for name in row[0].row.chances}):
        yield Column(name, partial(_chance, name))


def _chance(name: str, row: Sequence[Printed]) -> str:
    return row[0].row.chances.get(name, "-")


def _outcome(row: Sequence[Printed]) -> str:
    found = row[0].row
    differs = ", kernel and model differ" * (found.agree is False)
    return f"{found.headline[0].rstrip(':')}{differs}"


def _texts(row: Sequence[Printed], *, is_wide: bool) -> Iterator[str]:
    first, *others = row
    for each in row if is_wide else [first]:
        yield f"{on(each.nodes)}:\n\n{each.text}"
    if others and not is_wide:
        nodes = _names(node for each in others for node in each.nodes)
        yield f"{nodes}: other details, such as addresses; -o wide shows them"
