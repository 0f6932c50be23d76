# SPDX-License-Identifier: Apache-2.0
"""The table of `ebpflb top`: which columns fit, their contents, and the order of the rows."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from ebpflb.config.values import socket_address
from ebpflb.model.flow import BackendRate, ServiceRate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNITS = ("", "k", "M", "G", "T")
_STEP = 1000
_BAR_CELLS = 8
_NAME_WIDTH = 16
_MARK = "! "
# Without a terminal.
_WIDTH = 160
_TEXTS = ("BACKENDS", "TROUBLE")

Justify = Literal["left", "right"]


class Column(NamedTuple):
    """width: of its widest cell. rank: columns with the highest rank are dropped first."""

    title: str
    width: int
    rank: int
    of_service: Callable[[ServiceRate], str]
    of_backend: Callable[[BackendRate], str]


def rate(number: float) -> str:
    """A rate per second, in at most five characters: 0, 0.5, 12, 1.2k."""
    for unit in _UNITS:
        if number < _STEP or unit == _UNITS[-1]:
            digits = 1 if 0 < number < 10 else 0  # noqa: PLR2004  one digit before the point
            return f"{number:.{digits}f}{unit}"
        number /= _STEP
    return ""


def percent(share: float | None) -> str:
    """A share from 0 to 1 in percent; "-" for None."""
    return "-" if share is None else f"{share:.0%}"


def bar(share: float | None) -> str:
    return "" if share is None else "#" * round(share * _BAR_CELLS)


def spread(service: ServiceRate) -> str:
    """The largest share, and how many times the even share it is."""
    if service.largest_share is None:
        return "-"
    return f"{percent(service.largest_share)} x{service.imbalance:.1f}"


def _both_ways(each: ServiceRate | BackendRate) -> str:
    return f"{rate(each.original_bytes)}/{rate(each.reply_bytes)}"


def _troubles(service: ServiceRate) -> str:
    first, *others = service.troubles or ("-",)
    return f"{first} and {len(others)} more" if others else first


def name_of(service: ServiceRate) -> str:
    """NAMESPACE/NAME:PORT, with the protocol unless that is TCP."""
    port = f":{service.port}" if service.port else ""
    protocol = "" if service.protocol == "TCP" else f"/{service.protocol}"
    return f"{service.namespace}/{service.service}{port}{protocol}"


def _state(backend: BackendRate) -> str:
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

SORTS: Mapping[str, Callable[[ServiceRate], float]] = {
    "connections": lambda s: s.connections,
    "active": lambda s: s.active,
    "bytes": lambda s: s.original_bytes + s.reply_bytes,
    "failures": lambda s: s.lost,
    "spread": lambda s: s.imbalance,
    "trouble": lambda s: len(s.troubles),
}

SORT_NAMES = (*SORTS, "name")


def sample_options(command: Callable[..., Any]) -> Any:
    """Options for how long to count and what to show."""
    options = (
        click.option(
            "--interval",
            type=click.FloatRange(min=0.1),
            default=2.0,
            show_default=True,
            metavar="SECONDS",
            help="Length of a sample.",
        ),
        click.option(
            "--sort",
            type=click.Choice(SORT_NAMES),
            default="connections",
            show_default=True,
            help="Sort by this, largest first, or by name.",
        ),
        click.option("--backends", is_flag=True, help="Also show each backend."),
    )
    return reduce(lambda made, option: option(made), reversed(options), command)


def ordered(services: Iterable[ServiceRate], sort: str) -> list[ServiceRate]:
    """Largest first, then by name; `name` sorts by name alone."""
    by_name = sorted(services, key=name_of)
    return sorted(by_name, key=SORTS[sort], reverse=True) if sort in SORTS else by_name


def fitting(width: int, name_width: int, of: Sequence[Column] = COLUMNS) -> Sequence[Column]:
    """The most important columns that fit next to a name, in display order."""
    left = width - name_width
    chosen = set()
    for column in sorted(of, key=lambda column: column.rank):
        left -= column.width + 1
        if left < 0:
            break
        chosen.add(column.title)
    return [column for column in of if column.title in chosen]


def print_table(
    services: Sequence[ServiceRate],
    *,
    backends: bool,
    is_wide: bool = False,
    of_columns: Sequence[Column] = COLUMNS,
) -> None:
    """Print it as wide as the terminal; `is_wide`: with all columns, whatever the width."""
    console = make_console(is_wide=is_wide)
    with console.capture() as shown:
        console.print(make_table(services, console.width, backends=backends, of=of_columns))
    click.echo("\n".join(line.rstrip() for line in shown.get().splitlines()))


def make_console(*, is_wide: bool = False) -> "Console":
    """As wide as the terminal; without one, as COLUMNS, else wide enough for all columns."""
    from rich.console import Console

    if not is_wide and (sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdecimal()):
        return Console(highlight=False, markup=False)
    return Console(highlight=False, markup=False, width=_WIDTH)


def make_table(
    services: Sequence[ServiceRate],
    width: int,
    *,
    backends: bool,
    of: Sequence[Column] = COLUMNS,
) -> "Table":
    """One row for each Service port, and one for each backend if `backends`.

    A `!` before the name marks a Service in trouble, in case that column does not fit.
    """
    from rich.table import Table

    longest = max((len(each) for each in _labels(services, backends=backends)), default=0)
    name_width = max(_NAME_WIDTH, min(longest, width // 3))
    columns = fitting(width, name_width, of)
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
    services: Iterable[ServiceRate], columns: Sequence[Column], *, backends: bool
) -> Iterator[tuple[ServiceRate, list[str]]]:
    for service in services:
        mark = _MARK if service.troubles else " " * len(_MARK)
        label = f"{mark}{name_of(service)}"
        yield service, [label, *(column.of_service(service) for column in columns)]
        for each in service.backends if backends else ():
            label = f"    {socket_address(each.address, each.port)}"
            yield service, [label, *(column.of_backend(each) for column in columns)]


def _labels(services: Iterable[ServiceRate], *, backends: bool) -> Iterator[str]:
    for _, (label,) in _rows(services, (), backends=backends):
        yield label


def _shortened(label: str, width: int) -> str:
    """The mark and the end of a label: the start, the namespace, tells less."""
    if len(label) <= width:
        return label
    return f"{label[: len(_MARK)]}…{label[len(_MARK) + 1 - width :]}"
