# SPDX-License-Identifier: Apache-2.0
"""Open connections as tables, and the options that select them: of a node and of the plugin."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from msgspec import to_builtins

from ebpflb.cli.explain_words import address_or_pod
from ebpflb.cli.flows import end_of, time_of
from ebpflb.cli.options import Output, checked, chosen, full_name, list_options, options
from ebpflb.cli.render import emit
from ebpflb.cli.table import Column, TextTable, size
from ebpflb.config.values import duration, is_ip, socket_address
from ebpflb.model.connection import BY, OpenConnection, WantedConnections

_SORTS: Mapping[str, Callable[[OpenConnection], float]] = {
    "age": lambda each: -(each.age or 0.0),
    "idle": lambda each: -(each.idle or 0.0),
    "bytes": lambda each: -sum((each.bytes.original, each.bytes.reply) if each.bytes else ()),
}

connection_options = options(
    click.option(
        "--from",
        "source",
        metavar="ADDR|[NS/]POD",
        callback=checked(address_or_pod),
        help="Only show connections of this client.",
    ),
    click.option(
        "--backend-gone",
        is_flag=True,
        help="Only show connections to backends that are no endpoints any more.",
    ),
    click.option(
        "--older",
        metavar="DURATION",
        callback=checked(duration),
        help="Only show connections older than this: 90s, 5m, 1h30m.",
    ),
    click.option(
        "--sort",
        type=click.Choice(list(_SORTS)),
        default="age",
        show_default=True,
        help="Which come first: the oldest, the longest idle, those with the most bytes.",
    ),
    list_options,
)
"""The options that select connections, and say how to show them."""


def by_option(*kinds: str) -> Callable[[Any], Any]:
    """What connections can be counted by."""
    return click.option(
        "--by", type=click.Choice(kinds), help="Count them by this, the most first."
    )


class Count(NamedTuple):
    """How many connections have this in common; removed: of backends that are gone."""

    name: str
    connections: int
    removed: int


def wanted_by(given: Mapping[str, Any], home: str = "") -> WantedConnections:
    """The connections that these options select; `home`: see listed(). UsageError."""
    namespace, service = chosen(given, home)
    source = given["source"] or ""
    if source and not is_ip(source):
        source = full_name(source, given["namespace"] or home)
    older = duration(given["older"]) if given["older"] else 0.0
    return WantedConnections(namespace, service, source, given["backend_gone"], older)


def show_connections(
    found: Iterable[OpenConnection], given: Mapping[str, Any], *, nodes: bool = False
) -> None:
    """Print them, or how many have something in common. `nodes`: name them."""
    output: Output = given["output"]
    listed = sorted(found, key=_SORTS[given["sort"]])
    if given["by"]:
        counts = counted(listed, given["by"])
        plain = [each._asdict() for each in counts]
        emit(plain, output, lambda: [TextTable(_counts_by(given["by"]), counts)])
        return
    columns = [each for each in COLUMNS if nodes or each.title != "NODE"]
    emit(list(map(to_builtins, listed)), output, lambda: [TextTable(columns, listed)])


def counted(found: Iterable[OpenConnection], by: str) -> list[Count]:
    """The most first. `by`: a key of BY."""
    connections_, removed = Counter[str](), Counter[str]()
    for each in found:
        name = BY[by](each) or "?"
        connections_[name] += 1
        removed[name] += each.removed
    return [Count(name, count, removed[name]) for name, count in connections_.most_common()]


def _service(each: OpenConnection) -> str:
    place = f"{socket_address(each.frontend.address, each.frontend.port)}/{each.protocol}"
    if each.service is None:
        return place
    port = each.service.port and f":{each.service.port}"
    return f"{each.service_name}{port} ({place})"


def _volume(each: OpenConnection) -> str:
    return f"{size(each.bytes.original)}/{size(each.bytes.reply)}" if each.bytes else ""


COLUMNS: Sequence[Column[OpenConnection]] = (
    Column("NODE", lambda each: each.node, width=12),
    Column("STATE", lambda each: each.state, width=11),
    Column("CLIENT", lambda each: end_of(each.client) or "?", width=22),
    Column("SERVICE", _service, width=28),
    Column("BACKEND", lambda each: f"{end_of(each.backend)}{' (gone)' * each.removed}", width=22),
    Column("PATH", lambda each: each.path, width=6),
    Column("AGE", lambda each: time_of(each.age), width=6),
    Column("IDLE", lambda each: time_of(each.idle), width=6),
    Column("BYTES", _volume, width=15),
)


def _counts_by(by: str) -> Sequence[Column[Count]]:
    return (
        Column(by.upper(), lambda each: each.name),
        Column("CONNECTIONS", lambda each: each.connections),
        Column("GONE", lambda each: each.removed),
    )
