# SPDX-License-Identifier: Apache-2.0
"""ebpflb flows: who connects to what through this node, and how it went."""

import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import reduce
from typing import Any, NamedTuple

import click
from msgspec import to_builtins

from ebpflb.cli.agent_client import query_socket as socket_path
from ebpflb.cli.agent_client import query_socket_option, stream
from ebpflb.cli.render import (
    Output,
    all_namespaces_option,
    emit,
    full_name,
    namespace_option,
    one_namespace,
    output_option,
    size,
    visible,
)
from ebpflb.config.values import is_ip, socket_address
from ebpflb.model.flow import Flow, FlowClient, LostFlows, flow_line, read_flow
from ebpflb.words.connections import (
    DROPPED,
    FAILED,
    FLOW_EVENTS,
    FORWARDED,
    REFUSED,
    START,
    VERDICTS,
)

_COLOURS = {FORWARDED: "green", FAILED: "red", REFUSED: "yellow", DROPPED: "red"}
_NARROW = 140
_GAP = "  "
_LAST = 20
_STEPS = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (60.0, 1.0, "s"))


class FlowColumn(NamedTuple):
    """width: usual; a column grows with its contents. label: where there are no titles."""

    title: str
    width: int
    cell: Callable[[Flow], str]
    label: str = ""


class FlowTable:
    """Turns flows into lines one by one, with a header before the first."""

    def __init__(self, width: int | None, *, colour: bool, nodes: bool = False) -> None:
        """`width`: of the terminal, in columns; None if it does not matter. `nodes`: name them."""
        self.colour = colour
        self._width = width
        self._nodes = nodes
        self._columns = [each for each in COLUMNS if nodes or each.title != _NODE]
        self._widths = [each.width for each in self._columns]
        self._verdict = [each.title for each in self._columns].index(_VERDICT)
        self._is_narrow = width is not None and width < _NARROW
        self._begun = False

    def fit(self, flows: Iterable[Flow | LostFlows]) -> None:
        """Widen the columns to fit these flows, which are all that follow."""
        rows = [self._header(), *(self._cells(each) for each in flows if isinstance(each, Flow))]
        self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        needed = sum(self._widths) + len(_GAP) * (len(self._widths) - 1)
        self._is_narrow = self._width is not None and self._width < needed

    def rows(self, found: Flow | LostFlows) -> Iterator[str]:
        if not (self._begun or self._is_narrow):
            yield self._line(self._header())
        self._begun = True
        if isinstance(found, LostFlows):
            where = f" on {visible(found.node)}" if self._nodes else ""
            what = f"{found.lost} flows{where} are missing"
            yield f"({what}: they arrived faster than they could be shown)"
        elif self._is_narrow:
            yield from self._block(self._cells(found))
        else:
            yield self._line(self._cells(found))

    def _header(self) -> list[str]:
        return [each.title for each in self._columns]

    def _cells(self, flow: Flow) -> list[str]:
        return [visible(each.cell(flow)) for each in self._columns]

    def _line(self, cells: Sequence[str]) -> str:
        self._widths = [max(pair) for pair in zip(self._widths, map(len, cells), strict=True)]
        padded = [cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)]
        padded[self._verdict] = self._coloured(padded[self._verdict])
        return _GAP.join(padded).rstrip()

    def _block(self, cells: Sequence[str]) -> Iterator[str]:
        *before, verdict = cells[: self._verdict + 1]
        client, service, backend, *_ = cells[self._verdict + 1 :]
        yield " ".join([*before, self._coloured(verdict)])
        facts = " ".join(
            f"{column.label} {cell}".lstrip()
            for column, cell in zip(self._columns, cells, strict=True)
            if column in _FACTS and cell
        )
        for line in filter(None, [client, f"-> {service}", backend and f"-> {backend}", facts]):
            yield from textwrap.wrap(
                line,
                width=max(self._width or 0, 20),
                initial_indent="  ",
                subsequent_indent="    ",
                break_on_hyphens=False,
            )

    def _coloured(self, cell: str) -> str:
        colour = _COLOURS.get(cell.strip())
        return click.style(cell, fg=colour) if self.colour and colour else cell


def _when(flow: Flow) -> str:
    try:
        moment = datetime.fromisoformat(f"{flow.time[:26]}+00:00").astimezone()
    except ValueError:
        # Such as February 30.
        return flow.time
    return moment.strftime("%b %d %H:%M:%S.%f")[:-3]


def _end(end: FlowClient | None) -> str:
    if end is None:
        return ""
    if not end.port:
        return end.pod or end.address
    return f"{end.pod}:{end.port}" if end.pod else socket_address(end.address, end.port)


def frontend_of(flow: Flow) -> str:
    """ADDRESS:PORT/PROTOCOL."""
    return f"{socket_address(flow.frontend.address, flow.frontend.port)}/{flow.protocol}"


def _service(flow: Flow) -> str:
    place, service = frontend_of(flow), flow.service
    if service is None:
        return place
    port = service.port and f":{service.port}"
    return f"{service.namespace}/{service.name}{port} ({place})"


def _why(flow: Flow) -> str:
    """What happened, how it ended, and anything unusual."""
    backend = flow.backend
    others = (
        "started" if flow.event == START else "",
        flow.reason.replace("_", " "),
        flow.ended.replace("_", " "),
        f"{flow.retransmits} retransmits" if flow.retransmits else "",
        "masqueraded" if flow.snat else "",
        "hairpin" if flow.hairpin else "",
        f"on {backend.node}" if backend and backend.local is False and backend.node else "",
    )
    return ", ".join(filter(None, others))


def _volume(flow: Flow) -> str:
    return f"{size(flow.bytes.original)}/{size(flow.bytes.reply)}" if flow.bytes else ""


def _time(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for limit, factor, unit in _STEPS:
        if seconds < limit:
            value = seconds * factor
            return f"{value:.3g}{unit}" if value < 100 else f"{value:.0f}{unit}"  # noqa: PLR2004
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s"


_NODE, _VERDICT = "NODE", "VERDICT"
_FACTS = (
    FlowColumn("PATH", 6, lambda flow: flow.path),
    FlowColumn("BYTES", 15, _volume),
    FlowColumn("TOOK", 6, lambda flow: _time(flow.seconds)),
    FlowColumn("RTT", 6, lambda flow: _time(flow.rtt_seconds), "rtt"),
    FlowColumn("WHY", 0, _why),
)
COLUMNS = (
    FlowColumn("TIME", 19, _when),
    FlowColumn(_NODE, 12, lambda flow: flow.node),
    FlowColumn(_VERDICT, 9, lambda flow: flow.verdict),
    FlowColumn("CLIENT", 22, lambda flow: _end(flow.client) or "?"),
    FlowColumn("SERVICE", 28, _service),
    FlowColumn("BACKEND", 22, lambda flow: _end(flow.backend)),
    *_FACTS,
)


def filter_options(command: Callable[..., Any]) -> Any:
    """The options that select flows."""
    options = (
        click.option("-f", "--follow", is_flag=True, help="Keep showing new flows."),
        click.option("--service", metavar="[NS/]NAME", help="Only show flows to this Service."),
        click.option(
            "--from", "source", metavar="ADDR|[NS/]POD", help="Only show flows from this client."
        ),
        click.option(
            "--to",
            "target",
            metavar="ADDR|[NS/]POD",
            help="Only show flows to this frontend or backend.",
        ),
        click.option(
            "--verdict", metavar="WORD,...", help=f"Any of: {', '.join(VERDICTS)} (see below)."
        ),
        click.option("--event", metavar="WORD,...", help=f"Any of: {', '.join(FLOW_EVENTS)}."),
        click.option(
            "--last", type=click.IntRange(0), metavar="N", help="Only show the last N flows."
        ),
        click.option(
            "--since", metavar="DURATION", help="Only show flows newer than this: 90s, 5m, 1h30m."
        ),
        namespace_option,
        all_namespaces_option,
        output_option,
    )
    return reduce(lambda made, option: option(made), reversed(options), command)


@click.command(
    epilog="""\b
Without --last or --since, it shows the last 20 flows, or only new ones with --follow.
It shows all namespaces; -n NS only shows flows to the Services of NS, and from or to its pods.
Names without a namespace are looked up in NS, or in `default` without -n.

\b
VERDICT is one of:
  forwarded  to a backend, which accepted it, or has not answered yet
  failed     the backend did not answer, or refused it
  refused    by ebpflb: there is no endpoint
  dropped    by ebpflb: a policy, source ranges, or a table that is full

\b
Examples:
  ebpflb flows
  ebpflb flows --follow --verdict failed,refused,dropped
  ebpflb flows --service default/web --since 5m
  ebpflb flows -n shop --from curl --to 10.96.0.10 --last 100
  ebpflb flows --follow -o jsonl | jq 'select(.rtt_seconds > 0.1)'
"""
)
@query_socket_option
@filter_options
def flows(query_socket: str | None, **given: Any) -> None:
    """Show recent flows on this node, oldest first.

    Options of `ebpflb run` set which flows the agent records, and how many it keeps.
    """
    check_output(given)
    lines = stream(socket_path(query_socket), ("flows",), parameters(given))
    try:
        if given["output"] == "jsonl":
            for line in lines:
                click.echo(line, nl=False)
        else:
            show(map(read_flow, lines), given["output"], follow=given["follow"])
    except KeyboardInterrupt:
        # --follow normally ends this way.
        raise click.exceptions.Exit(0) from None


def check_output(given: Mapping[str, Any]) -> None:
    """Raise UsageError for a format that --follow does not support."""
    output = given["output"]
    if given["follow"] and output in ("json", "yaml"):
        raise click.UsageError(f"-o {output} does not work with --follow: use -o jsonl")


def parameters(given: Mapping[str, Any]) -> dict[str, str]:
    """The parameters of the agent's query for these options. UsageError."""
    one_namespace(given["namespace"], every=given["all_namespaces"])
    names = {"source": "from", "target": "to"}
    found = {
        names.get(name, name): str(given[name])
        for name in ("source", "target", "verdict", "event", "since", "namespace")
        if given[name]
    }
    if given["service"]:
        found["service"] = full_name(given["service"], given["namespace"])
    for name in found.keys() & {"from", "to"}:
        text = found[name]
        found[name] = text if is_ip(text) else full_name(text, given["namespace"])
    return found | _extent(given)


def _extent(given: Mapping[str, Any]) -> dict[str, str]:
    limit = given["last"]
    if limit is None and not given["since"]:
        limit = 0 if given["follow"] else _LAST
    return ({} if limit is None else {"limit": str(limit)}) | (
        {"follow": "1"} if given["follow"] else {}
    )


def show(
    flows: Iterable[Flow | LostFlows], output: Output, *, follow: bool, nodes: bool = False
) -> None:
    """Print flows. `nodes`: see FlowTable."""
    if output == "jsonl":
        for flow in flows:
            click.echo(flow_line(flow).decode(), nl=False)
    elif output in ("json", "yaml"):
        emit([to_builtins(flow) for flow in flows], output, lambda: ())
    else:
        is_terminal = sys.stdout.isatty()
        fits = is_terminal and output == "table"
        width = shutil.get_terminal_size().columns if fits else None
        table = FlowTable(width, colour=is_terminal and "NO_COLOR" not in os.environ, nodes=nodes)
        _show_table(table, flows, follow=follow)


def _show_table(table: FlowTable, flows: Iterable[Flow | LostFlows], *, follow: bool) -> None:
    if not follow:
        flows = list(flows)
        table.fit(flows)
    for flow in flows:
        click.echo("\n".join(table.rows(flow)), color=table.colour)
