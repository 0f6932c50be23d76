# SPDX-License-Identifier: Apache-2.0
"""Answers of `ebpflb explain` that differ from node to node: a matrix of nodes and endpoints."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ebpflb.cli.explain_text import headline, possible_backends, problem
from ebpflb.cli.options import Output
from ebpflb.cli.render import terminal_width
from ebpflb.cli.table import Column, Table, visible
from ebpflb.config.values import socket_address
from ebpflb.kubectl.cluster import some

_NEVER = "-"


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
        socket_address(each["address"], each["port"]): _cell(each)
        for each in possible_backends(answer["kernel"])
    }
    return MatrixRow(headline(answer), answer["agree"], chances)


def _cell(backend: Mapping[str, Any]) -> str:
    return f"{backend['chance']:.0%}{' !' if problem(backend) else ''}"


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
    table = Table(list(_columns(rows)), rows).lines(terminal_width(output))
    parts = [f"{on(nodes)}, whose answers differ:", "\n".join(table)]
    for row in rows:
        parts += _texts(row, is_wide=output == "wide")
    return "\n\n".join(parts)


def _columns(rows: Iterable[Sequence[Printed]]) -> Iterator[Column[list[Printed]]]:
    yield Column("NODE", lambda row: _names(node for each in row for node in each.nodes))
    yield Column("OUTCOME", _outcome)
    for name in sorted({name for row in rows for name in row[0].row.chances}):
        yield Column(name, partial(_chance, name))


def _outcome(row: Sequence[Printed]) -> str:
    found = row[0].row
    differs = ", kernel and model differ" * (found.agree is False)
    return f"{found.headline[0].rstrip(':')}{differs}"


def _chance(name: str, row: Sequence[Printed]) -> str:
    return row[0].row.chances.get(name, _NEVER)


def _texts(row: Sequence[Printed], *, is_wide: bool) -> Iterator[str]:
    first, *others = row
    for each in row if is_wide else [first]:
        yield f"{on(each.nodes)}:\n\n{each.text}"
    if others and not is_wide:
        nodes = _names(node for each in others for node in each.nodes)
        yield f"{nodes}: other details, such as addresses; -o wide shows them"
