# SPDX-License-Identifier: Apache-2.0
"""What an answer of `ebpflb explain` comes to: its outcome, its exit status and its text."""

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ebpflb.cli.table import visible
from ebpflb.config.moment import local
from ebpflb.config.values import socket_address
from ebpflb.errors import EbpflbError
from ebpflb.words.connections import SOCKET_HOOK, Fate
from ebpflb.words.scheduler import Scheduler

Answer = Mapping[str, Any]
Row = tuple[str, str]


class Outcome(StrEnum):
    """What becomes of new connections.

    partly: they work with some of the backends that they may get. likely_fails: with none of them.
    fails: refused, dropped, or matched by a frontend and not translated. passes: not to a Service.
    """

    WORKS = "works"
    PARTLY = "partly"
    LIKELY_FAILS = "likely_fails"
    FAILS = "fails"
    PASSES = "passes"


WORKS, FAILS, CANNOT_TELL, NOT_A_SERVICE, WORKS_PARTLY = 0, 1, 3, 4, 5

_MOST = 5
_MOST_NAMED = 2
_WIDTH_OF_FILES = 100
_STATUSES = {
    Outcome.WORKS: WORKS,
    Outcome.PARTLY: WORKS_PARTLY,
    Outcome.LIKELY_FAILS: FAILS,
    Outcome.FAILS: FAILS,
    Outcome.PASSES: NOT_A_SERVICE,
}
_STYLES = {
    Outcome.WORKS: "bold green",
    Outcome.PARTLY: "bold yellow",
    Outcome.LIKELY_FAILS: "bold red",
    Outcome.FAILS: "bold red",
    Outcome.PASSES: "bold cyan",
}
_VERDICTS = {Fate.PASSES.value: "passes unchanged"}


class ExplainCommand(click.Command):
    """Exits with a status of its own if there is no answer."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error exits with CANNOT_TELL."""
        try:
            return super().invoke(ctx)
        except EbpflbError as error:
            raise _CannotTellError(str(error)) from error


class _CannotTellError(click.ClickException):
    exit_code = CANNOT_TELL


def rendered(found: Answer, *, is_wide: bool = False) -> str:
    """The text, wrapped to the terminal's width; not wrapped in a file."""
    is_terminal = (sys.stdout.isatty() or "COLUMNS" in os.environ) and not is_wide
    console = Console(
        highlight=False, markup=False, emoji=False, width=None if is_terminal else _WIDTH_OF_FILES
    )
    with console.capture() as printed:
        _print(console, visible(found))
    return "\n".join(line.rstrip() for line in printed.get().splitlines())


def outcome_of(answer: Answer) -> Outcome:
    """The outcome of an answer's `verdict`, `kernel.frontend` and `kernel.backends`."""
    kernel = answer["kernel"]
    if answer["verdict"] == Fate.TRANSLATED:
        possible = possible_backends(kernel)
        failing = sum(bool(problem(each)) for each in possible)
        if not failing:
            return Outcome.WORKS
        return Outcome.PARTLY if failing < len(possible) else Outcome.LIKELY_FAILS
    if answer["verdict"] == Fate.PASSES and (not kernel["frontend"] or _lets_pass(kernel)):
        return Outcome.PASSES
    return Outcome.FAILS


def _lets_pass(kernel: Answer) -> bool:
    """Whether the Service asks for that without a backend."""
    choice = kernel["frontend"]["elsewhere" if kernel["from"] == "elsewhere" else "this_node"]
    return choice["if_empty"] == "pass" and not choice["backends"]


def possible_backends(kernel: Answer) -> list[Answer]:
    """The backends that a new connection may get."""
    return [each for each in kernel["backends"] if each["chance"] > 0]


def problem(backend: Answer) -> str:
    """Why connections to a backend fail, as a clause without its subject; "" if none is known."""
    if trouble := backend.get("trouble"):
        return str(trouble)
    return f"gets no packets: {backend['reason']}" if backend["reason"] else ""


def exit_status(found: Answer) -> int:
    """The exit status that --help describes."""
    return CANNOT_TELL if found["agree"] is False else _STATUSES[outcome_of(found)]


def _print(console: Console, found: Answer) -> None:
    word, rest = headline(found)
    console.print(Text(word, _STYLES[outcome_of(found)]), Text(rest), end="\n\n")
    console.print(_grid(list(_facts(found))))
    endpoints = list(_endpoint_rows(found))
    if endpoints:
        console.print()
        console.print(_table(("ENDPOINT", "CHANCE", "WHY"), endpoints))
    console.print()
    for line in _agreement(found):
        console.print(Text(line, "bold red" if found["agree"] is False else ""))


def headline(found: Answer) -> tuple[str, str]:
    """The outcome in words, and the rest of the line."""
    outcome, kernel = outcome_of(found), found["kernel"]
    verdict = str(_VERDICTS.get(found["verdict"], found["verdict"]))
    if outcome is Outcome.PASSES:
        return verdict, f"- {kernel['steps'][0]['why']}"
    if outcome is Outcome.PARTLY:
        return _works_for(found)
    word = f"{outcome.replace('_', ' ')}: {verdict}"
    where = "then" if found["at"] else f"at the {kernel['place']}"
    if outcome is Outcome.FAILS:
        return word, ": ".join(filter(None, (where, kernel["why"])))
    count = len(possible_backends(kernel))
    to = f"one of {count} backends" if count > 1 else "the only possible backend"
    return word, f"{where}, to {to}"


def _works_for(found: Answer) -> tuple[str, str]:
    possible = possible_backends(found["kernel"])
    failing = [each for each in possible if problem(each)]
    named = [f"{_name(each, found)} {problem(each)}" for each in failing[:_MOST_NAMED]]
    more = [f"{len(failing) - _MOST_NAMED} more"] if len(failing) > _MOST_NAMED else []
    count = len(possible) - len(failing)
    return f"works for {count} of {len(possible)}:", "; ".join([*named, *more])


def _name(backend: Answer, found: Answer) -> str:
    """With the name of its pod, if that is known."""
    place = backend["address"], backend["port"]
    for endpoint in found["model"]["endpoints"]:
        if endpoint["pod"] and (endpoint["address"], endpoint["port"]) == place:
            return f"{endpoint['pod']} ({endpoint['address']})"
    return socket_address(*place)


# What the model says in words.
_TOLD = {"SERVICE": "left_out", "ASKS FOR": "annotations", "BACKUP": "backup"}


def _facts(found: Answer) -> Iterator[Row]:
    kernel = found["kernel"]
    if found["at"]:
        yield "AT", f"{local(found['at']):%b %d %H:%M:%S}{_unchanged(found['since'])}"
    yield "FROM", _shown_client(found["client"])
    if found["note"]:
        yield "", found["note"]
    yield "TO", _shown_target(found["target"])
    for each in kernel["steps"]:
        step = " - ".join(filter(None, (each["verdict"], each["why"])))
        yield "PATH", f"{each['place']}: {step}"
    if kernel["frontend"]:
        yield from _policy(kernel)
    if found["model"]["frontend"] and not found["model"]["endpoints"]:
        yield "ENDPOINT", "the Service port has none in this family"
    for title, field in _TOLD.items():
        if told := found["model"].get(field):
            yield title, told
    yield from _flows(kernel)


def _unchanged(since: str) -> str:
    """To the minute, for nodes get a change at slightly different times."""
    return f"; unchanged since {local(since):%b %d %H:%M}" if since else ""


def _shown_client(client: Answer) -> str:
    end = socket_address(client["address"], client["port"]) if client["port"] else client["address"]
    cover = "" if client["tc_cover"] or "pod" not in client["kind"] else ", without tc cover"
    device = f", via {client['device']}" if client["device"] else ""
    return f"{end}, {client['kind']}{device}{cover}"


def _shown_target(target: Answer) -> str:
    end = f"{socket_address(target['address'], target['port'])}/{target['protocol']}"
    port = f":{target['port_name']}" if target["port_name"] else ""
    return f"{end}, {target['type']} of {target['service']}{port}" if target["service"] else end


def _retry(kernel: Answer) -> str:
    if kernel["place"] == SOCKET_HOOK:
        return "not for this client, which connects at the socket"
    wide = "if an endpoint refuses or does not answer, the next SYN goes to another one"
    direct = any(each.get("tunnel") for each in kernel["backends"])
    return f"{wide}{'; not through a tunnel' * direct}"


def _policy(kernel: Answer) -> Iterator[Row]:
    frontend = kernel["frontend"]
    is_inside = frontend["type"] == "ClusterIP"
    policy = frontend["internal_policy" if is_inside else "external_policy"]
    source = kernel["from"] or "this node"
    clients = "clients elsewhere" if source == "elsewhere" else source
    note = ""
    if not is_inside and policy == "Local" and source == "this node":
        note = ", which does not apply to clients of this node"
    which = "internal" if is_inside else "external"
    yield "POLICY", f"{which} traffic policy {policy}{note}; the endpoints for {clients}"
    if frontend["affinity_timeout"]:
        said = f": {kernel['affinity']}" if kernel["affinity"] else ""
        yield "AFFINITY", f"by client, {frontend['affinity_timeout']} s{said}"
    if frontend["scheduler"] != Scheduler.RANDOM:
        said = f": {kernel['scheduler']}" if kernel["scheduler"] else ""
        yield "SCHEDULER", f"{frontend['scheduler']}{said}"
    if frontend.get("retry"):
        yield "RETRY", _retry(kernel)
    if limits := frontend.get("limits"):
        said = f": {kernel['limits']}" if kernel.get("limits") else ""
        yield "LIMITS", f"{limits}{said}"
    if frontend["allowed_sources"]:
        yield "CLIENTS", f"only {', '.join(frontend['allowed_sources'])} (source ranges)"
    if frontend["masquerade"]:
        yield "SOURCE", "masqueraded (--masquerade-all)"


def _flows(kernel: Answer) -> Iterator[Row]:
    flows, sockets = kernel["flows"], kernel["sockets"]
    for each in flows[:_MOST]:
        backend = socket_address(each["backend"], each["backend_port"])
        times = f"began {each['age']:.0f} s ago, silent for {each['silent']:.0f} s"
        yield "FLOW", f"from port {each['client_port']} to {backend}: {each['state']}, {times}"
    if len(flows) > _MOST:
        yield "", f"and {len(flows) - _MOST} more"
    if sockets:
        each = [f"{one['sockets']} to {socket_address(*list(one.values())[:2])}" for one in sockets]
        more = ", ..." if len(each) > _MOST else ""
        yield "SOCKETS", f"on this node, by backend: {', '.join(each[:_MOST])}{more}"


def _endpoint_rows(found: Answer) -> Iterator[tuple[str, str, str]]:
    backends = {(each["address"], each["port"]): each for each in found["kernel"]["backends"]}
    for endpoint in found["model"]["endpoints"]:
        key = endpoint["address"], endpoint["port"]
        backend = backends.pop(key, None)
        yield socket_address(*key), _chance(backend), _why(endpoint, backend)
    for key, backend in backends.items():
        place = "on this node" if backend["local"] else "not on this node"
        yield socket_address(*key), _chance(backend), f"{place}{_rewrite(backend)}"


def _chance(backend: Answer | None) -> str:
    return f"{backend['chance']:.0%}" if backend else "-"


def _why(endpoint: Answer, backend: Answer | None) -> str:
    pod = f"{endpoint['pod']} " if endpoint["pod"] else ""
    node = f"on {endpoint['node']}" if endpoint["node"] else ""
    zone = f" in {endpoint['zone']}" if endpoint["zone"] else ""
    place = f"{pod}{node}{zone}"
    return f"{endpoint['why']}{f' ({place})' if place else ''}{_rewrite(backend)}"


def _rewrite(backend: Answer | None) -> str:
    if not backend:
        return ""
    full = "; full: it has as many connections as it may" if backend.get("full") else ""
    trouble = f"; {backend['trouble']}" if backend.get("trouble") else ""
    return f"{full}{_source_seen(backend)}{trouble}"


def _source_seen(backend: Answer) -> str:
    if backend["reason"]:
        return f"; dropped: {backend['reason']}"
    if backend["hairpin"]:
        return f"; the client itself, sees {backend['masquerade']} as the source"
    if backend.get("tunnel"):
        return f"; sees the client, through a tunnel to its node {backend['tunnel']} (DSR)"
    if not backend["masquerade"]:
        return ""
    way = "routed by the kernel" if backend.get("via_stack") else "redirected past FORWARD"
    why = ": no tunnel leads to its node (DSR; see `ebpflb doctor`)"
    reason = why if backend.get("lacks_tunnel") else ""
    return f"; sees {backend['masquerade']} as the source, {way}{reason}"


def _agreement(found: Answer) -> Iterator[str]:
    if found["at"]:
        yield "From what was kept of that time; the maps of then are gone"
    elif found["agree"] is None:
        yield f"Not compared with the model: {found['model']['unasked']}"
    elif found["agree"]:
        yield "Kernel and model agree"
    else:
        yield "Kernel and model DIFFER:"
        yield from (f"  {line}" for line in found["differences"])


def _grid(rows: Sequence[Row]) -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    before = ""
    for name, value in rows:
        grid.add_row("" if name == before else name, value)
        before = name
    return grid


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="")
    for name in header:
        table.add_column(name, overflow="fold", justify="right" if name == "CHANCE" else "left")
    for row in rows:
        table.add_row(*row)
    return table
