# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb doctor: what keeps Services from working on any node, each problem once."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import click
from msgspec import Struct, convert, structs

from ebpflb.cli.options import Output, output_option
from ebpflb.cli.render import emit
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentQuestion
from ebpflb.kubectl.cluster import Cluster, cluster_command, some

# Most severe first.
_SEVERITIES = ("error", "warning", "note", "ok")
# What may differ between nodes that have the same problem: numbers, addresses, hashes.
_PARTICULARS = re.compile(r"\b[0-9a-f]*[0-9][0-9a-f.:]*\b")

Key = tuple[str, ...]


class _Finding(Struct):
    severity: str
    check: str
    where: str
    what: str
    advice: str


class _DoctorAnswer(Struct):
    """What `ebpflb doctor` prints, as far as it is read here."""

    findings: list[_Finding]


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding that one or more nodes report.

    example: the node with these words; on others, numbers, addresses and devices may differ.
    """

    severity: str
    check: str
    where: str
    what: str
    advice: str
    example: str
    nodes: list[str] = field(default_factory=list)


@click.command(
    epilog="""\b
Findings that differ only in numbers, addresses and devices are shown as one, in the words of the
first node.

\b
Exit status 1 if there is an error or a warning, or if a node does not answer.

\b
Examples:
  kubectl ebpflb doctor
  kubectl ebpflb doctor -o json | jq -r '.[] | select(.severity == "error") | .nodes[]'
"""
)
@click.option(
    "-A", "--all-namespaces", is_flag=True, expose_value=False, help="No effect: it is always on."
)
@output_option
@cluster_command
def doctor(cluster: Cluster, output: Output) -> None:
    """Find what keeps Services from working on any node.

    It shows each problem once, with the nodes that have it.
    """
    cluster.find()
    answers = sorted(
        cluster.ask_json(AgentQuestion("doctor"), _findings), key=lambda each: each[0].node
    )
    problems = _grouped(answers)
    emit(problems, output, lambda: _lines(problems, len(answers), wide=output == "wide"))
    if any(each.severity in _SEVERITIES[:2] for each in problems):
        cluster.exit_status = 1


def _findings(agent: RemoteAgent, content: Any) -> list[Problem]:
    found = convert(content, _DoctorAnswer).findings
    return [Problem(**structs.asdict(each), example=agent.node) for each in found]


def _grouped(answers: Iterable[tuple[RemoteAgent, list[Problem]]]) -> list[Problem]:
    """Most severe first, then by the number of nodes."""
    found: dict[Key, Problem] = {}
    for agent, findings in answers:
        for each in findings:
            key = each.severity, each.check, _PARTICULARS.sub("", each.what), each.advice
            # Checks that pass are reported once each.
            problem = found.setdefault(key[:2] if each.severity == "ok" else key, each)
            if agent.node not in problem.nodes:
                problem.nodes.append(agent.node)
    return sorted(found.values(), key=_order)


def _order(problem: Problem) -> tuple[int, int, str]:
    rank = [*_SEVERITIES, problem.severity].index(problem.severity)
    return rank, -len(problem.nodes), problem.check


def _lines(problems: Iterable[Problem], asked: int, *, wide: bool) -> Iterator[str]:
    """`asked`: how many nodes answered."""
    if not asked:
        yield "no node has answered"
        return
    counts = dict.fromkeys(("error", "warning"), 0)
    for each in problems:
        if each.severity in counts:
            counts[each.severity] += 1
        if each.severity == "ok" and not wide:
            continue
        names = f"all {asked} nodes" if len(each.nodes) == asked > 1 else some(each.nodes)
        where = f"{each.where}: " if each.where else ""
        advice = f" -> {each.advice}" if each.advice else ""
        yield f"{each.severity:7}  {each.check:10}  {names}: {where}{each.what}{advice}"
    yield ""
    totals = ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items())
    yield f"{totals} on {asked} node{'' if asked == 1 else 's'}"
