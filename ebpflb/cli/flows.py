# SPDX-License-Identifier: Apache-2.0
"""ebpflb flows: who connects to what through this node, and what becomes of it."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import click

from ebpflb.address_text import is_ip
from ebpflb.cli.agent_client import query_socket, query_socket_option, stream
from ebpflb.cli.flow_table import FlowTable
from ebpflb.cli.render import visible

_LAST = 20


@click.command(
    epilog="""\b
Without --last and --since it shows the last 20 flows; with --follow those that come.
A Service or pod without a namespace is one of `default`.

\b
Examples:
  ebpflb flows
  ebpflb flows --follow --verdict refused,dropped
  ebpflb flows --service default/web --since 5m
  ebpflb flows --from default/curl --to 10.96.0.10 --last 100
  ebpflb flows --follow -o jsonl | jq 'select(.rtt_seconds > 0.1)'
"""
)
@click.option("-f", "--follow", is_flag=True, help="Go on with the flows to come.")
@click.option("--service", metavar="NS/NAME", help="To this Service.")
@click.option("--from", "source", metavar="ADDR|POD", help="Of this client.")
@click.option("--to", "target", metavar="ADDR|POD", help="To this frontend or backend.")
@click.option("--verdict", metavar="WORD,...", help="forwarded, refused, dropped.")
@click.option("--event", metavar="WORD,...", help="start, end, refused, dropped.")
@click.option("--last", type=click.IntRange(0), metavar="N", help="No more than the last N.")
@click.option("--since", metavar="DURATION", help="Not older than this, as in 90s, 5m or 1h30m.")
@query_socket_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "jsonl"]),
    default="table",
    show_default=True,
    help="For people; one array; one object a line.",
)
def flows(**given: Any) -> None:
    """Show the flows that this node's agent keeps, oldest first.

    Which records are made, and how many are kept, is set by options of `ebpflb run`.
    """
    output = given["output"]
    if given["follow"] and output == "json":
        raise click.UsageError("-o json has an end, and --follow has none: use -o jsonl")
    lines = stream(query_socket(given["query_socket"]), ("flows",), _parameters(given))
    try:
        _show(lines, output, follow=given["follow"])
    except KeyboardInterrupt:
        # The usual end of --follow.
        raise click.exceptions.Exit(0) from None


def _parameters(given: Mapping[str, Any]) -> dict[str, str]:
    """The query's; see observe/flows/queries.py."""
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
    """How many, and whether more."""
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
