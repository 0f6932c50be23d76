# SPDX-License-Identifier: Apache-2.0
"""ebpflb top: what each Service carries right now, and which has the classic trouble."""

import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import Output, emit, output_option
from ebpflb.cli.top_table import SORTS, make_table, ordered

if TYPE_CHECKING:
    from rich.console import Console
    from rich.live import Live

    from ebpflb.cli.keyboard import Press
    from ebpflb.dataplane.kernel.maps import MapSet
    from ebpflb.dataplane.view.rates import ServiceRate

_SORTS = (*SORTS, "name")
_KEYS = {name[0]: name for name in _SORTS}
_HELP = "q quit; sort: " + ", ".join(f"{key} {name}" for key, name in _KEYS.items())
_NO_TERMINAL_WIDTH = 160


@dataclass(frozen=True, slots=True)
class Sample:
    """The answer of one sample. `seconds`: how long was counted."""

    seconds: float
    services: "list[ServiceRate]"


@click.command(
    epilog="""\b
  CONN/S    new connections and flows, per second
  ACTIVE    connected sockets and flows there are now
  FAIL/S    refused, dropped, or failed at the backend, per second
  B/S TO/FROM  bytes to the backends and from them, per second
  SPREAD    share of the backend with most connections, and how often that is its even share
  FAR       share of the connections that go to another node
  TROUBLE   marked with a ! at the front of the row, too:
    answers nobody  asked, but no byte came back
    gets nothing    no new connection, which is not by chance
    starved         far fewer active ones than the others, which are long
    no endpoint, no local endpoint

\b
Keys: q quits; c a b f s t n sort. Not on a terminal: one table.

\b
Examples:
  ebpflb top
  ebpflb top --sort failures --backends
  ebpflb top --once --interval 10 -o json | jq '.services[] | select(.troubles != [])'
"""
)
@click.option("--once", is_flag=True, help="Show one sample and end.")
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
    help="What is on top: the largest, or by name.",
)
@click.option("--backends", is_flag=True, help="Show each backend, too.")
@bpffs_option
@output_option
def top(
    once: bool, interval: float, sort: str, backends: bool, bpffs_root: str | None, output: Output
) -> None:
    """Show what each Service carries, live. Needs the pins alone, no agent."""
    maps = open_pins(pin_root(bpffs_root))[1]
    if output != "table":
        sample = _sample(maps, interval)
        emit(Sample(sample.seconds, ordered(sample.services, sort)), output, lambda: ())
    elif once or not _is_screen():
        _print(ordered(_sample(maps, interval).services, sort), backends=backends)
    else:
        _Screen(maps, interval, sort, backends=backends).run()


def _is_screen() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") not in (None, "", "dumb", "unknown")


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
    """As wide as the terminal; without one as COLUMNS says, or wide enough for all columns."""
    from rich.console import Console

    if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal():
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, width=_NO_TERMINAL_WIDTH)


class _Screen:
    """The live table: counts, shows, and listens to the keyboard meanwhile."""

    def __init__(self, maps: "MapSet", interval: float, sort: str, *, backends: bool) -> None:
        self._maps, self._interval = maps, interval
        self._sort, self._backends = sort, backends
        self._services: list[ServiceRate] = []
        self._console = _console()

    def run(self) -> None:
        """Until q or Ctrl-C."""
        from rich.live import Live

        from ebpflb.cli.keyboard import keys

        live = Live(console=self._console, screen=True, auto_refresh=False)
        try:
            with keys() as press, live:
                self._show(live)
                self._follow(live, press)
        except KeyboardInterrupt:
            return

    def _follow(self, live: "Live", press: "Press") -> None:
        from ebpflb.dataplane.view.rates import rates, sample_traffic

        before = sample_traffic(self._maps)
        while self._wait(live, press):
            after = sample_traffic(self._maps)
            self._services = rates(before, after)
            before = after
            self._show(live)

    def _wait(self, live: "Live", press: "Press") -> bool:
        """The time until the next sample; whether there is to be one."""
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
