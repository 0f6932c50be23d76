# SPDX-License-Identifier: Apache-2.0
"""ebpflb flows: who connects to what through this node, and how it went."""

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any

import click

from ebpflb.cli.agent_client import query_socket, query_socket_option, stream
from ebpflb.cli.render import size, visible
from ebpflb.config.values import is_ip, socket_address

_COLOURS = {"forwarded": "green", "refused": "yellow", "dropped": "red"}
_HEADER = ("TIME", "VERDICT", "CLIENT", "SERVICE", "BACKEND", "PATH", "BYTES", "TOOK", "RTT", "WHY")
# The widest that is usual; a column grows with what comes.
_WIDTHS = (19, 9, 22, 28, 22, 6, 15, 6, 6, 0)
_NARROW = 140
_VERDICT = 1
_GAP = "  "
_LAST = 20
_STEPS = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (60.0, 1.0, "s"))

Flow = Mapping[str, Any]


class FlowTable:
    """Flows become lines one by one, with a header before the first."""

    def __init__(self, width: int | None, *, colour: bool) -> None:
        """`width`: of the terminal, in columns; None where it does not matter."""
        self.colour = colour
        self._width = width
        self._widths = list(_WIDTHS)
        self._is_narrow = width is not None and width < _NARROW
        self._begun = False

    def fit(self, flows: Iterable[Flow]) -> None:
        """Make the columns as wide as these flows, which are all that follow, need."""
        rows = [_HEADER, *(_cells(flow) for flow in flows if "lost" not in flow)]
        self._widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        needed = sum(self._widths) + len(_GAP) * (len(self._widths) - 1)
        self._is_narrow = self._width is not None and self._width < needed

    def rows(self, flow: Flow) -> Iterator[str]:
        if not (self._begun or self._is_narrow):
            yield self._line(_HEADER)
        self._begun = True
        if "lost" in flow:
            yield f"({flow['lost']} flows are missing: they came faster than they could be shown)"
        elif self._is_narrow:
            yield from self._block(flow)
        else:
            yield self._line(_cells(flow))

    def _line(self, cells: tuple[str, ...]) -> str:
        self._widths = [max(pair) for pair in zip(self._widths, map(len, cells), strict=True)]
        padded = [cell.ljust(width) for cell, width in zip(cells, self._widths, strict=True)]
        padded[_VERDICT] = self._coloured(padded[_VERDICT])
        return _GAP.join(padded).rstrip()

    def _block(self, flow: Flow) -> Iterator[str]:
        when, verdict, client, service, backend, *rest = _cells(flow)
        yield f"{when} {self._coloured(verdict)}"
        path, volume, took, rtt, why = rest
        facts = " ".join(filter(None, [path, volume, took, f"rtt {rtt}" if rtt else "", why]))
        lines = [client, f"-> {service}", f"-> {backend}" if backend else "", facts]
        for line in filter(None, lines):
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


def _cells(flow: Flow) -> tuple[str, ...]:
    return (
        _when(flow["time"]),
        flow["verdict"],
        _who(flow["client"]) if "client" in flow else "?",
        _service(flow),
        _who(flow["backend"]) if "backend" in flow else "",
        flow["path"],
        "/".join(size(flow["bytes"][way]) for way in ("original", "reply") if "bytes" in flow),
        _time(flow.get("seconds")),
        _time(flow.get("rtt_seconds")),
        _why(flow),
    )


def _when(time: str) -> str:
    moment = datetime.fromisoformat(f"{time[:26]}+00:00").astimezone()
    return moment.strftime("%b %d %H:%M:%S.%f")[:-3]


def _who(side: Mapping[str, Any]) -> str:
    if "port" not in side:
        return str(side.get("pod", side["address"]))
    if "pod" in side:
        return f"{side['pod']}:{side['port']}"
    return socket_address(side["address"], side["port"])


def _service(flow: Flow) -> str:
    frontend = socket_address(flow["frontend"]["address"], flow["frontend"]["port"])
    place = f"{frontend}/{flow['protocol']}"
    if "service" not in flow:
        return place
    service = flow["service"]
    port = f":{service['port']}" if "port" in service else ""
    return f"{service['namespace']}/{service['name']}{port} ({place})"


def _why(flow: Flow) -> str:
    """What happened, how it ended, and what is unusual about it."""
    backend = flow.get("backend", {})
    others = (
        "started" if flow["event"] == "start" else "",
        flow.get("reason", "").replace("_", " "),
        flow.get("ended", "").replace("_", " "),
        f"{flow['retransmits']} retransmits" if flow.get("retransmits") else "",
        "masqueraded" if flow.get("snat") else "",
        "hairpin" if flow.get("hairpin") else "",
        f"on {backend['node']}" if backend.get("local") is False and "node" in backend else "",
    )
    return ", ".join(filter(None, others))


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


@click.command(
    epilog="""\b
Without --last or --since it shows the last 20 flows, and with --follow only new ones.
A Service or pod without a namespace is looked up in `default`.

\b
Examples:
  ebpflb flows
  ebpflb flows --follow --verdict refused,dropped
  ebpflb flows --service default/web --since 5m
  ebpflb flows --from default/curl --to 10.96.0.10 --last 100
  ebpflb flows --follow -o jsonl | jq 'select(.rtt_seconds > 0.1)'
"""
)
@click.option("-f", "--follow", is_flag=True, help="Keep showing new flows.")
@click.option("--service", metavar="NS/NAME", help="Only flows to this Service.")
@click.option("--from", "source", metavar="ADDR|POD", help="Only flows from this client.")
@click.option("--to", "target", metavar="ADDR|POD", help="Only flows to this frontend or backend.")
@click.option("--verdict", metavar="WORD,...", help="forwarded, refused, dropped.")
@click.option("--event", metavar="WORD,...", help="start, end, refused, dropped.")
@click.option("--last", type=click.IntRange(0), metavar="N", help="At most the last N.")
@click.option("--since", metavar="DURATION", help="At most this old: 90s, 5m, 1h30m.")
@query_socket_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "jsonl"]),
    default="table",
    show_default=True,
    help="A table, one JSON array, or one JSON object a line.",
)
def flows(**given: Any) -> None:
    """Show the flows that this node's agent keeps, oldest first.

    Options of `ebpflb run` say which flows are recorded and how many are kept.
    """
    output = given["output"]
    if given["follow"] and output == "json":
        raise click.UsageError("-o json needs an end, which --follow does not have: use -o jsonl")
    lines = stream(query_socket(given["query_socket"]), ("flows",), _parameters(given))
    try:
        _show(lines, output, follow=given["follow"])
    except KeyboardInterrupt:
        # The usual end of --follow.
        raise click.exceptions.Exit(0) from None


def _parameters(given: Mapping[str, Any]) -> dict[str, str]:
    names = {"source": "from", "target": "to"}
    found = {
        names.get(name, name): str(given[name])
        for name in ("source", "target", "verdict", "event", "since")
        if given[name]
    }
    if given["service"]:
        found["service"] = _with_namespace(given["service"])
    for name in found.keys() & {"from", "to"}:
        found[name] = found[name] if is_ip(found[name]) else _with_namespace(found[name])
    return found | _extent(given)


def _extent(given: Mapping[str, Any]) -> dict[str, str]:
    limit = given["last"]
    if limit is None and not given["since"]:
        limit = 0 if given["follow"] else _LAST
    return ({} if limit is None else {"limit": str(limit)}) | (
        {"follow": "1"} if given["follow"] else {}
    )


def _with_namespace(name: str) -> str:
    return name if "/" in name else f"default/{name}"


def _show(lines: Iterator[bytes], output: str, *, follow: bool) -> None:
    if output == "jsonl":
        for line in lines:
            click.echo(line, nl=False)
    elif output == "json":
        click.echo(json.dumps([json.loads(line) for line in lines], indent=2))
    else:
        _show_table((visible(json.loads(line)) for line in lines), follow=follow)


def _show_table(flows: Iterable[Any], *, follow: bool) -> None:
    is_terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size().columns if is_terminal else None
    table = FlowTable(width, colour=is_terminal and "NO_COLOR" not in os.environ)
    if not follow:
        flows = list(flows)
        table.fit(flows)
    for flow in flows:
        click.echo("\n".join(table.rows(flow)), color=table.colour)
