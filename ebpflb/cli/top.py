# SPDX-License-Identifier: Apache-2.0
"""ebpflb top: what each Service carries now, and which one is in trouble."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import Output, emit, output_option
from ebpflb.config.values import socket_address

if TYPE_CHECKING:
    from rich.table import Table

    from ebpflb.dataplane.view.rates import BackendRate, ServiceRate

_UNITS = ("", "k", "M", "G", "T")
_STEP = 1000
_BAR_CELLS = 8
_NAME_WIDTH = 16
_MARK = "! "
_TEXTS = ("BACKENDS", "TROUBLE")

Justify = Literal["left", "right"]


class Column(NamedTuple):
    """width: of its widest cell. rank: columns with a larger rank are left out first."""

    title: str
    width: int
    rank: int
    of_service: "Callable[[ServiceRate], str]"
    of_backend: "Callable[[BackendRate], str]"


def rate(number: float) -> str:
    """Per second, in at most five characters: 0, 0.5, 12, 1.2k."""
    for unit in _UNITS:
        if number < _STEP or unit == _UNITS[-1]:
            digits = 1 if 0 < number < 10 else 0  # noqa: PLR2004  one digit before the point
            return f"{number:.{digits}f}{unit}"
        number /= _STEP
    return ""


def percent(share: float | None) -> str:
    """Of a share from 0 to 1; "-" without one."""
    return "-" if share is None else f"{share:.0%}"


def bar(share: float | None) -> str:
    return "" if share is None else "#" * round(share * _BAR_CELLS)


def spread(service: "ServiceRate") -> str:
    """The largest share, and how many times the even share that is."""
    if service.largest_share is None:
        return "-"
    return f"{percent(service.largest_share)} x{service.imbalance:.1f}"


def _both_ways(each: "ServiceRate | BackendRate") -> str:
    return f"{rate(each.original_bytes)}/{rate(each.reply_bytes)}"


def _troubles(service: "ServiceRate") -> str:
    first, *others = service.troubles or ("-",)
    return f"{first} and {len(others)} more" if others else first


def name_of(service: "ServiceRate") -> str:
    """NAMESPACE/NAME:PORT, with the protocol unless that is TCP."""
    port = f":{service.port}" if service.port else ""
    protocol = "" if service.protocol == "TCP" else f"/{service.protocol}"
    return f"{service.namespace}/{service.service}{port}{protocol}"


def _state(backend: "BackendRate") -> str:
    state = "local" if backend.local else "remote"
    if backend.standing in ("ejected", "trial"):
        return f"{state}, {'on ' if backend.standing == 'trial' else ''}{backend.standing}"
    if not backend.offered:
        return f"{state}, ending" if backend.terminating else f"{state}, draining"
    return f"{state}, terminating" if backend.terminating else state


COLUMNS = (
    Column("CONN/S", 6, 1, lambda s: rate(s.connections), lambda b: rate(b.connections)),
    Column("ACTIVE", 6, 2, lambda s: str(s.active), lambda b: str(b.active)),
    Column("FAIL/S", 6, 1, lambda s: rate(s.lost), lambda b: rate(b.failed)),
    Column("B/S TO/FROM", 11, 4, _both_ways, _both_ways),
    Column("SPREAD", 10, 5, spread, lambda b: f"{percent(b.share)} {bar(b.share)}".strip()),
    Column("FAR", 4, 6, lambda s: percent(s.cross_node_share), lambda _: ""),
    Column("BACKENDS", 19, 7, lambda s: str(s.endpoints), _state),
    Column("TROUBLE", 24, 3, _troubles, lambda b: b.trouble),
)

SORTS: "Mapping[str, Callable[[ServiceRate], float]]" = {
    "connections": lambda s: s.connections,
    "active": lambda s: s.active,
    "bytes": lambda s: s.original_bytes + s.reply_bytes,
    "failures": lambda s: s.lost,
    "spread": lambda s: s.imbalance,
    "trouble": lambda s: len(s.troubles),
}


def ordered(services: "Iterable[ServiceRate]", sort: str) -> "list[ServiceRate]":
    """The largest first, then by name; `name` sorts by name alone."""
    by_name = sorted(services, key=name_of)
    return sorted(by_name, key=SORTS[sort], reverse=True) if sort in SORTS else by_name


def fitting(width: int, name_width: int) -> Sequence[Column]:
    """The most important columns that fit beside a name, in order."""
    left = width - name_width
    chosen = set()
    for column in sorted(COLUMNS, key=lambda column: column.rank):
        left -= column.width + 1
        if left < 0:
            break
        chosen.add(column.title)
    return [column for column in COLUMNS if column.title in chosen]


def make_table(services: "Sequence[ServiceRate]", width: int, *, backends: bool) -> "Table":
    """One row for each Service port, and one for each backend if `backends`.

    A `!` before the name marks a Service in trouble even if that column does not fit.
    """
    from rich.table import Table

    longest = max((len(each) for each in _labels(services, backends=backends)), default=0)
    name_width = max(_NAME_WIDTH, min(longest, width // 3))
    columns = fitting(width, name_width)
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("SERVICE", no_wrap=True, overflow="ellipsis", width=name_width)
    for column in columns:
        justify: Justify = "left" if column.title in _TEXTS else "right"
        table.add_column(
            column.title,
            no_wrap=True,
            overflow="ellipsis",
            justify=justify,
            min_width=column.width,
        )
    for service, (label, *cells) in _rows(services, columns, backends=backends):
        shown = _shortened(label, name_width)
        table.add_row(shown, *cells, style="bold red" if service.troubles else "")
    return table


def _rows(
    services: "Iterable[ServiceRate]", columns: Sequence[Column], *, backends: bool
) -> "Iterator[tuple[ServiceRate, list[str]]]":
    for service in services:
        mark = _MARK if service.troubles else " " * len(_MARK)
        label = f"{mark}{name_of(service)}"
        yield service, [label, *(column.of_service(service) for column in columns)]
        for each in service.backends if backends else ():
            label = f"    {socket_address(each.address, each.port)}"
            yield service, [label, *(column.of_backend(each) for column in columns)]


def _labels(services: "Iterable[ServiceRate]", *, backends: bool) -> Iterator[str]:
    for _, (label,) in _rows(services, (), backends=backends):
        yield label


def _shortened(label: str, width: int) -> str:
    """The mark and the end of a label, because namespaces differ less."""
    if len(label) <= width:
        return label
    return f"{label[: len(_MARK)]}…{label[len(_MARK) + 1 - width :]}"


if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from ebpflb.dataplane.kernel.maps import MapSet
    from ebpflb.dataplane.view.rates import ServiceRate

_SORTS = (*SORTS, "name")
_KEYS = {name[0]: name for name in _SORTS}
_HELP = "q quit; sort: " + ", ".join(f"{key} {name}" for key, name in _KEYS.items())
_NO_TERMINAL_WIDTH = 160
# Values of TERM for terminals that cannot show a screen.
_NO_SCREEN = (None, "", "dumb", "unknown")

KeyReader = Callable[[float], str]


@dataclass(frozen=True, slots=True)
class Sample:
    """The answer of one sample. seconds: how long it counted."""

    seconds: float
    services: "list[ServiceRate]"


@click.command(
    epilog="""\b
  CONN/S    new connections and flows, per second
  ACTIVE    connected sockets and flows that exist now
  FAIL/S    refused, dropped, or failed at the backend, per second
  B/S TO/FROM  bytes to the backends and from them, per second
  SPREAD    share of the busiest backend, and how many times its even share that is
  FAR       share of the connections that go to other nodes
  TROUBLE   also marked with a ! before the Service:
    answers nobody  gets requests, but sends no byte back
    gets nothing    gets no new connection, and not by chance
    starved         has far fewer active connections than the others
    no endpoint, no local endpoint

\b
Keys: q quits; c a b f s t n sort. Without a terminal it prints one table.

\b
Examples:
  ebpflb top
  ebpflb top --sort failures --backends
  ebpflb top --once --interval 10 -o json | jq '.services[] | select(.troubles != [])'
"""
)
@click.option("--once", is_flag=True, help="Print one sample and exit.")
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to count.",
)
@click.option(
    "--sort",
    type=click.Choice(_SORTS),
    default="connections",
    show_default=True,
    help="Sort by the largest, or by name.",
)
@click.option("--backends", is_flag=True, help="Also show each backend.")
@bpffs_option
@output_option
def top(
    once: bool, interval: float, sort: str, backends: bool, bpffs_root: str | None, output: Output
) -> None:
    """Show what each Service carries, live. It reads the pinned maps and needs no agent."""
    maps = open_pins(pin_root(bpffs_root))[1]
    if output != "table":
        sample = _sample(maps, interval)
        emit(Sample(sample.seconds, ordered(sample.services, sort)), output, lambda: ())
    elif once or not sys.stdout.isatty() or os.environ.get("TERM") in _NO_SCREEN:
        _print(ordered(_sample(maps, interval).services, sort), backends=backends)
    else:
        _Screen(maps, interval, sort, backends=backends).run()


def _sample(maps: "MapSet", interval: float) -> Sample:
    from ebpflb.dataplane.view.rates import rates, sample_traffic

    before = sample_traffic(maps)
    time.sleep(interval)
    after = sample_traffic(maps)
    return Sample(after.seconds - before.seconds, rates(before, after))


def _print(services: "list[ServiceRate]", *, backends: bool) -> None:
    console = _console()
    with console.capture() as shown:
        console.print(make_table(services, console.width, backends=backends))
    click.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))


def _console() -> "Console":
    """As wide as the terminal; without one, as COLUMNS says or wide enough for all columns."""
    from rich.console import Console

    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, width=_NO_TERMINAL_WIDTH)


class _Screen:
    """The live table, and the keys that sort it."""

    def __init__(self, maps: "MapSet", interval: float, sort: str, *, backends: bool) -> None:
        self._maps, self._interval = maps, interval
        self._sort, self._backends = sort, backends
        self._services: list[ServiceRate] = []
        self._console = _console()

    def run(self) -> None:
        """Until q or Ctrl-C."""
        from rich.live import Live

        live = Live(console=self._console, screen=True, auto_refresh=False)
        try:
            with keys() as press, live:
                self._show(live)
                self._follow(live, press)
        except KeyboardInterrupt:
            return

    def _follow(self, live: "Live", press: KeyReader) -> None:
        from ebpflb.dataplane.view.rates import rates, sample_traffic

        before = sample_traffic(self._maps)
        while self._wait(live, press):
            after = sample_traffic(self._maps)
            self._services = rates(before, after)
            before = after
            self._show(live)

    def _wait(self, live: "Live", press: KeyReader) -> bool:
        """Wait for the next sample; False if the user quits."""
        end = time.monotonic() + self._interval
        while (left := end - time.monotonic()) > 0:
            key = press(left)
            if key == "q":
                return False
            if key in _KEYS:
                self._sort = _KEYS[key]
                self._show(live)
        return True

    def _show(self, live: "Live") -> None:
        from rich.console import Group
        from rich.text import Text

        services = ordered(self._services, self._sort)
        table = make_table(services, self._console.width, backends=self._backends)
        state = f"{len(services)} Service ports by {self._sort}" if services else "counting"
        title = Text(f"{state}, {self._interval:g} s ({_HELP})", no_wrap=True, overflow="ellipsis")
        live.update(Group(title, table), refresh=True)


@contextlib.contextmanager
def keys() -> Iterator[KeyReader]:
    """Gives a function that waits so many seconds for a key and returns it, or "".

    It needs no Enter and makes no echo. At the end the terminal is as before. Without a terminal
    the function only waits.
    """
    if not sys.stdin.isatty():
        yield _pass
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield lambda seconds: _press(terminal, seconds)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _press(terminal: int, seconds: float) -> str:
    ready, _, _ = select.select([terminal], [], [], max(seconds, 0))
    return os.read(terminal, 1).decode(errors="replace") if ready else ""


def _pass(seconds: float) -> str:
    select.select([], [], [], max(seconds, 0))
    return ""
