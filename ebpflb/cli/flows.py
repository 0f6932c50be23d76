# SPDX-License-Identifier: Apache-2.0
"""ebpflb flows: who connects to what through this node, and how it went."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import click
from msgspec import to_builtins

from ebpflb.cli.agent_client import query_socket as socket_path
from ebpflb.cli.agent_client import query_socket_option, stream
from ebpflb.cli.explain_words import address_or_pod
from ebpflb.cli.options import (
    checked,
    full_name,
    listed,
    moment_option,
    namespace_options,
    options,
    output_option,
    service_option,
    words_option,
)
from ebpflb.cli.render import emit, has_colours, local_time, terminal_width
from ebpflb.cli.table import Column, TextTable, size
from ebpflb.config.values import is_ip, socket_address
from ebpflb.model.flow import Flow, FlowClient, LostFlows, flow_line, read_flow, time_of_id
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
_LAST = 20
_STEPS = ((1e-3, 1e6, "us"), (1.0, 1e3, "ms"), (60.0, 1.0, "s"))


def end_of(end: FlowClient | None) -> str:
    """The pod or the address, with the port; empty if unknown."""
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


def time_of(seconds: float | None) -> str:
    """In a suitable unit; empty if unknown."""
    if seconds is None:
        return ""
    for limit, factor, unit in _STEPS:
        if seconds < limit:
            value = seconds * factor
            return f"{value:.3g}{unit}" if value < 100 else f"{value:.0f}{unit}"  # noqa: PLR2004
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m" if hours else f"{minutes}m{rest}s"


def _took(seconds: float | None) -> str:
    """A flow within one tick of the kernel's clock took less than the longest tick there is."""
    return "<10ms" if seconds == 0 else time_of(seconds)


COLUMNS: Sequence[Column[Flow]] = (
    Column("TIME", lambda flow: local_time(flow.time), width=19),
    Column("NODE", lambda flow: flow.node, width=12),
    Column("VERDICT", lambda flow: flow.verdict, width=9),
    Column("CLIENT", lambda flow: end_of(flow.client) or "?", width=22),
    Column("SERVICE", _service, width=28),
    Column("BACKEND", lambda flow: end_of(flow.backend), width=22),
    Column("PATH", lambda flow: flow.path, width=6),
    Column("BYTES", _volume, width=15),
    Column("TOOK", lambda flow: _took(flow.seconds), width=6),
    Column("RTT", lambda flow: time_of(flow.rtt_seconds), width=6),
    Column("WHY", _why),
    Column("ID", lambda flow: flow.id, wide=True),
)
_VERDICT = "VERDICT"
_LABELS = {"SERVICE": "-> ", "BACKEND": "-> ", "RTT": "rtt "}
_LINES_OF_THEIR_OWN = ("CLIENT", "SERVICE", "BACKEND")


def flow_table(
    flows: Iterable[Flow | LostFlows], *, nodes: bool = False, colour: bool = False
) -> TextTable[Flow]:
    """`nodes`: name them."""
    columns = [each for each in COLUMNS if nodes or each.title != "NODE"]
    return TextTable(
        columns,
        (each if isinstance(each, Flow) else _missing(each, nodes=nodes) for each in flows),
        style=lambda flow: {"fg": _COLOURS.get(flow.verdict)} if colour else {},
        styled=_VERDICT,
        block=partial(_block, [each.title for each in columns if not each.wide]),
    )


def _missing(found: LostFlows, *, nodes: bool) -> str:
    where = f" on {found.node}" if nodes else ""
    what = f"{found.lost} flows{where} are missing"
    return f"({what}: they arrived faster than they could be shown)"


def _block(titles: Sequence[str], cells: Sequence[str], width: int) -> Iterator[str]:
    """What happened, then who, each on a line of its own, then everything else."""
    at = titles.index(_VERDICT) + 1
    yield " ".join(cells[:at])
    named = {
        title: f"{_LABELS.get(title, '')}{cell}"
        for title, cell in zip(titles[at:], cells[at:], strict=True)
        if cell
    }
    own = [named.pop(title, "") for title in _LINES_OF_THEIR_OWN]
    for line in filter(None, [*own, " ".join(named.values())]):
        yield from textwrap.wrap(
            line, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
        )


filter_options = options(
    click.option("-f", "--follow", is_flag=True, help="Keep showing new flows."),
    service_option,
    click.option(
        "--from",
        "source",
        metavar="ADDR|[NS/]POD",
        callback=checked(address_or_pod),
        help="Only show flows from this client.",
    ),
    click.option(
        "--to",
        "target",
        metavar="ADDR|[NS/]POD",
        callback=checked(address_or_pod),
        help="Only show flows to this frontend or backend.",
    ),
    words_option("--verdict", VERDICTS, f"Any of: {', '.join(VERDICTS)} (see below)."),
    words_option("--event", FLOW_EVENTS, f"Any of: {', '.join(FLOW_EVENTS)}."),
    click.option(
        "--id",
        metavar="ID",
        callback=checked(time_of_id),
        help="Only show the flow with this id, which -o wide shows.",
    ),
    click.option("--last", type=click.IntRange(0), metavar="N", help="Only show the last N flows."),
    moment_option(
        "--since",
        "Only show flows after this: 5m or 1h30m ago, 03:10, 2026-11-24T03:10; up to 24 hours.",
    ),
    moment_option("--until", "Only show flows before this."),
    namespace_options,
    output_option,
)
"""The options that select flows."""


@click.command(
    epilog="""\b
Without --last or --since, it shows the last 20 flows, or only new ones with --follow.
A TIME is how long ago, or local time: 03:10 is the last time it was that late.
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
  ebpflb flows --since 03:00 --until 03:20 --verdict failed
  ebpflb flows --id 187a3f21c6d0e2b4-1f3 -o json
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
    if given["output"] == "jsonl":
        for line in lines:
            click.echo(line, nl=False)
    else:
        show(map(read_flow, lines), given)


def check_output(given: Mapping[str, Any]) -> None:
    """Raise UsageError for what --follow does not go with."""
    output = given["output"]
    for name in ("until", "id"):
        if given["follow"] and given[name]:
            raise click.UsageError(f"--{name} does not work with --follow")
    if given["follow"] and output in ("json", "yaml"):
        raise click.UsageError(f"-o {output} does not work with --follow: use -o jsonl")


def parameters(given: Mapping[str, Any], home: str = "") -> dict[str, str]:
    """The parameters of the agent's query for these options; `home`: see listed(). UsageError."""
    namespace = listed(given, home)
    limit = given["last"]
    if limit is None and not given["since"]:
        limit = 0 if given["follow"] else _LAST
    wanted = {
        "namespace": namespace,
        **{name: given[name] for name in ("verdict", "event", "id", "since", "until", "service")},
        "from": given["source"],
        "to": given["target"],
        "limit": "" if limit is None else str(limit),
        "follow": "1" if given["follow"] else "",
    }
    for name in ("service", "from", "to"):
        if (text := wanted[name]) and (name == "service" or not is_ip(text)):
            wanted[name] = full_name(text, namespace or home)
    return {name: text for name, text in wanted.items() if text}


def show(
    flows: Iterator[Flow | LostFlows], given: Mapping[str, Any], *, nodes: bool = False
) -> None:
    """Print flows. `given`: the options. `nodes`: see flow_table()."""
    output = given["output"]
    first = next(flows, None)
    if given["id"] and first is None:
        click.echo("no record of the last 24 hours here has this id", err=True)
    flows = chain([first] if first else [], flows)
    if output == "jsonl":
        for flow in flows:
            click.echo(flow_line(flow).decode(), nl=False)
    elif output in ("json", "yaml"):
        emit([to_builtins(flow) for flow in flows], output, lambda: ())
    elif first:
        # The titles come with the first one.
        table = flow_table(flows, nodes=nodes, colour=has_colours())
        is_wide, width = output == "wide", terminal_width(output)
        for line in table.lines(width, is_wide=is_wide, grows=given["follow"]):
            click.echo(line, color=has_colours())
