# SPDX-License-Identifier: Apache-2.0
"""ebpflb top: what each Service carries now, and which are in trouble."""

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.agent_client import NamesOfPods, query_socket, query_socket_option, stream
from ebpflb.cli.options import Output, chosen, compact_option, list_options
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import emit, is_screen, repeat, text_lines
from ebpflb.cli.tables.past import PastWindow, past_options, past_window, show_past
from ebpflb.cli.tables.top import (
    SORT_NAMES,
    chosen_by,
    ordered,
    sample_options,
    top_lines,
    without_idle,
)
from ebpflb.errors import QueryError
from ebpflb.model.address import format_address
from ebpflb.model.compact import compact, from_compact
from ebpflb.model.compact.past_rates import PastRates, decode_past
from ebpflb.model.compact.rates import port_row
from ebpflb.model.flow import ServiceRate

if TYPE_CHECKING:
    from rich.live import Live

    from ebpflb.dataplane.kernel.maps import MapSet
    from ebpflb.dataplane.view.rates import TrafficSample

_KEYS = {name[0]: name for name in SORT_NAMES}
_HELP = "q quit; i idle ones; sort: " + ", ".join(f"{key} {name}" for key, name in _KEYS.items())

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
  B/S TO/FROM  bytes to and from the backends, per second
  SPREAD    share of the busiest backend, and how many times the even share that is
  REMOTE    share of the connections that go to other nodes
  TROUBLE   such a Service is also marked with a !:
    answers nobody       gets requests, but sends nothing back
    refuses connections  accepts none
    gets nothing         gets no new connections, and not by chance
    starved              has far fewer active connections than the others
    new pod ... idle     never had a connection, while the others have two or more each
    N of N connections on removed pods  no longer endpoints; at least half of all are told
    no endpoint, no local endpoint
    on its backup, spills over to its backup
    N of N endpoints full  have as many connections as the Service allows
    CLIENT over its limit  with the drop reason; its connections are refused or dropped

\b
It shows Services that carry something or are in trouble; --all and --service show idle ones too.
Keys: q quits; i shows idle ones; c a b f s t n sort. Without a terminal, it prints one table and
exits. The agent, if it runs, gives the names of pods.
With --at, a connection counts when it ends, with all its bytes; what records do not tell is "-".

\b
Examples:
  ebpflb top
  ebpflb top --sort failures --backends
  ebpflb top --service shop/web --backends
  ebpflb top --at 03:10 --window 5m --sort failures
  ebpflb top --once --interval 10 -o json | jq '.services[] | select(.troubles != [])'
"""
)
@click.option("--once", is_flag=True, help="Print one sample and exit.")
@compact_option
@past_options
@sample_options
@bpffs_option
@query_socket_option
@list_options
def top(
    once: bool, sort: str, backends: bool, bpffs_root: str | None, output: Output, **given: Any
) -> None:
    """Show live traffic per Service. It reads the pinned maps and needs no agent.

    With --at the agent tells what its flow records know.
    """
    namespace, name = chosen(given)
    if window := past_window(given):
        answer = _past_answer(given["query_socket"], window, namespace)
        if given["is_compact"]:
            click.echo(answer)
        else:
            show_past(_past(answer), name, {"sort": sort, "backends": backends}, output)
        return
    maps = open_pins(pin_root(bpffs_root))[1]
    pods = NamesOfPods(given["query_socket"])
    meter = _Meter(maps, given["interval"], namespace, name, pods)
    every = given["every"] or bool(name)
    if given["is_compact"]:
        click.echo(compact(list(map(port_row, meter.sample().services))))
    elif once or output != "table" or not is_screen():
        sample = meter.sample()
        services, is_wide = ordered(sample.services, sort), output == "wide"
        lines = partial(top_lines, services, backends=backends, every=every, is_wide=is_wide)
        emit(Sample(sample.seconds, services), output, lines, services)
    else:
        _Screen(meter, sort, backends=backends, every=every).run()


def _past_answer(flag: str | None, window: PastWindow, namespace: str) -> str:
    given = {**window.parameters, "namespace": namespace}
    return b"".join(stream(query_socket(flag), ("top",), given)).decode(errors="replace")


def _past(answer: str) -> PastRates:
    try:
        return decode_past(from_compact(answer))
    except ValueError as error:
        raise QueryError(f"the agent's answer is not this version's: {error}") from error


class _Meter:
    """Measures what the chosen Services carry between two readings of the maps."""

    def __init__(
        self,
        maps: "MapSet",
        interval: float,
        namespace: str,
        name: str,
        pods: NamesOfPods,
    ) -> None:
        """`name`: of the only Service; empty for all. `namespace`: of all; empty for any."""
        from ebpflb.dataplane.view.rates import TrafficSampler

        self.interval = interval
        self._namespace, self._name, self._pods = namespace, name, pods
        self._sampler = TrafficSampler(maps)
        self._before: TrafficSample | None = None

    def sample(self) -> Sample:
        self.next()
        time.sleep(self.interval)
        return self.next()

    def next(self) -> Sample:
        """The sample since the last call; the first one is of no time."""
        from ebpflb.dataplane.view.rates import rates

        after = self._sampler.sample()
        before, self._before = self._before or after, after
        addresses = {key.address for each in after.services.values() for key in each.backends}
        clients = {key.client for each in after.services.values() for key in each.limited}
        pods = self._pods.of(set(map(format_address, addresses | clients)))
        found = chosen_by(self._name, rates(before, after, pods))
        chosen = [each for each in found if self._namespace in ("", each.namespace)]
        return Sample(after.seconds - before.seconds, chosen)


class _Screen:
    """The live table, and the keys that sort it."""

    def __init__(self, meter: _Meter, sort: str, *, backends: bool, every: bool) -> None:
        self._meter = meter
        self._sort, self._backends, self._every = sort, backends, every
        self._services: list[ServiceRate] = []

    def run(self) -> None:
        """Run until q or Ctrl-C."""
        from rich.console import Console
        from rich.live import Live

        console = Console(highlight=False, markup=False)
        with keys() as press, Live(console=console, screen=True, auto_refresh=False) as live:
            repeat(self._meter.next, partial(self._take, live), partial(self._wait, live, press))

    def _take(self, live: "Live", sample: Sample) -> None:
        self._services = sample.services if sample.seconds else []
        self._show(live)

    def _wait(self, live: "Live", press: KeyReader) -> bool:
        """Wait for the next sample; False if the user quits."""
        end = time.monotonic() + self._meter.interval
        while (left := end - time.monotonic()) > 0:
            key = press(left)
            if key == "q":
                return False
            if key in _KEYS:
                self._sort = _KEYS[key]
            if key == "i":
                self._every = not self._every
            if key in (*_KEYS, "i"):
                self._show(live)
        return True

    def _show(self, live: "Live") -> None:
        from rich.console import Group
        from rich.text import Text

        count = len(without_idle(self._services, every=self._every))
        state = f"{count} Service ports by {self._sort}" if self._services else "counting"
        title = f"{state}, {self._meter.interval:g} s ({_HELP})"
        services = ordered(self._services, self._sort)
        table = top_lines(services, backends=self._backends, every=self._every)
        text = "\n".join(text_lines(table, live.console.width))
        shown = Group(Text(title, no_wrap=True, overflow="ellipsis"), Text.from_ansi(text))
        live.update(shown, refresh=True)


@contextlib.contextmanager
def keys() -> Iterator[KeyReader]:
    """Yields a function that waits up to some seconds for a key and returns it, or "".

    It needs no Enter and echoes nothing. The terminal is restored at the end. Without a terminal
    the function only waits.
    """
    if not sys.stdin.isatty():
        yield partial(_press, None)
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield partial(_press, terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _press(terminal: int | None, seconds: float) -> str:
    ready, _, _ = select.select([] if terminal is None else [terminal], [], [], max(seconds, 0))
    return os.read(ready[0], 1).decode(errors="replace") if ready else ""
