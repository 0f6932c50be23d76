# SPDX-License-Identifier: Apache-2.0
"""The table of `ebpflb top`: which columns fit, their contents, and the order of the rows."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import click

from ebpflb.cli.render import folded, visible
from ebpflb.config.values import near, socket_address
from ebpflb.errors import ConfigError
from ebpflb.model.ejection import EjectionState
from ebpflb.model.flow import BackendRate, ServiceRate

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_UNITS = ("", "k", "M", "G", "T")
_STEP = 1000
_BAR_CELLS = 8
_NAME_WIDTH = 16
_MARK = "! "
# Without a terminal nothing is cut off, or wrapped.
_WIDTH = 1000
_TEXTS = ("BACKENDS", "TROUBLE")

Justify = Literal["left", "right"]


class Column(NamedTuple):
    """width: of its widest cell; TROUBLE wraps. rank: the highest is dropped first, 0 never."""

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
    if backend.is_left_out:
        return f"{state}, {EjectionState.of(backend.ejection).shown}"
    if not backend.offered:
        return f"{state}, {going(backend)}"
    return f"{state}, terminating" if backend.terminating else state


def going(backend: BackendRate) -> str:
    """What becomes of a backend that takes no new connections."""
    if backend.removed:
        return "removed"
    return "ending" if backend.terminating else "draining"


COLUMNS = (
    Column("CONN/S", 6, 1, lambda s: rate(s.connections), lambda b: rate(b.connections)),
    Column("ACTIVE", 6, 2, lambda s: str(s.active), lambda b: str(b.active)),
    Column("FAIL/S", 6, 1, lambda s: rate(s.lost), lambda b: rate(b.failed)),
    Column("B/S TO/FROM", 11, 4, _both_ways, _both_ways),
    Column("SPREAD", 10, 5, spread, lambda b: f"{percent(b.share)} {bar(b.share)}".strip()),
    Column("FAR", 4, 6, lambda s: percent(s.cross_node_share), lambda _: ""),
    Column("BACKENDS", 19, 7, lambda s: str(s.endpoints), _state),
    Column("TROUBLE", 14, 0, _troubles, lambda b: b.trouble),
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
        click.option(
            "--all",
            "every",
            is_flag=True,
            help="Also show idle Services; -o json and such always have them.",
        ),
    )
    return reduce(lambda made, option: option(made), reversed(options), command)


def chosen_by(name: str, services: Iterable[ServiceRate]) -> list[ServiceRate]:
    """The ports of one Service, by NAMESPACE/NAME, or all for "". ConfigError if it has none."""
    known = list(services)
    if not name:
        return known
    found = [each for each in known if f"{each.namespace}/{each.service}" == name]
    if not found:
        names = {f"{each.namespace}/{each.service}" for each in known}
        raise ConfigError(f"no Service {name}{near(name, names)}")
    return found


def without_idle(services: Iterable[ServiceRate], *, every: bool) -> list[ServiceRate]:
    """Those that carry something or are in trouble, or all if `every`."""
    return [each for each in services if every or not each.is_idle]


def hidden_text(count: int) -> str:
    """How many Service ports are not shown; empty for none."""
    noun = "Service port is" if count == 1 else "Service ports are"
    return f"{count} idle {noun} not shown (--all)" if count else ""


def ordered(services: Iterable[ServiceRate], sort: str) -> list[ServiceRate]:
    """Largest first, then by name; `name` sorts by name alone."""
    by_name = sorted(services, key=name_of)
    return sorted(by_name, key=SORTS[sort], reverse=True) if sort in SORTS else by_name


def fitting(width: int, name_width: int, of: Sequence[Column] = COLUMNS) -> Sequence[Column]:
    """The most important columns that fit next to a name, in display order; the first always."""
    left = width - name_width
    chosen = set()
    for column in sorted(of, key=lambda column: column.rank):
        left -= column.width + 1
        if left < 0 and column.rank:
            break
        chosen.add(column.title)
    return [column for column in of if column.title in chosen]


def print_table(
    services: Sequence[ServiceRate],
    *,
    backends: bool,
    every: bool,
    is_wide: bool = False,
    of_columns: Sequence[Column] = COLUMNS,
) -> None:
    """Print it as wide as the terminal; `is_wide`: with all columns, whatever the width.

    `every`: also idle ones.
    """
    console = make_console(is_wide=is_wide)
    found = without_idle(services, every=every)
    table = make_table(found, console.width, backends=backends, of=of_columns, is_wide=is_wide)
    with console.capture() as shown:
        console.print(table)
    lines = [line.rstrip() for line in shown.get().splitlines()]
    if hidden := hidden_text(len(services) - len(found)):
        lines += folded(hidden, console.width)
    click.echo("\n".join(lines))


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
    is_wide: bool = False,
) -> "Table":
    """One row for each Service port, and one for each backend if `backends`.

    A `!` before the name marks a Service in trouble. `is_wide`: pods with their addresses.
    """
    from rich.table import Table

    label_of = _pod_and_address if is_wide else _pod_or_address
    rows = list(_rows(services, of, label_of if backends else None))
    longest = max((len(label) for _, label, _ in rows), default=0)
    name_width = min(max(_NAME_WIDTH, min(longest, width // 3)), max(width // 2, 1))
    columns = fitting(width, name_width, of)
    at = [of.index(column) for column in columns]
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("SERVICE", no_wrap=True, overflow="ellipsis", width=name_width)
    for column in columns:
        justify: Justify = "left" if column.title in _TEXTS else "right"
        wraps = column.rank == 0
        table.add_column(
            column.title,
            no_wrap=not wraps,
            overflow="fold" if wraps else "ellipsis",
            justify=justify,
            min_width=None if wraps else column.width,
        )
    for service, label, cells in rows:
        shown = [_shortened(label, name_width), *(cells[each] for each in at)]
        table.add_row(*shown, style="bold red" if service.troubles else "")
    return table


def _rows(
    services: Iterable[ServiceRate],
    columns: Sequence[Column],
    label_of: Callable[[BackendRate], str] | None,
) -> Iterator[tuple[ServiceRate, str, list[str]]]:
    """Service, label and cells of each row. `label_of`: of backends, or None to leave them out."""
    for service in services:
        mark = _MARK if service.troubles else " " * len(_MARK)
        cells = [visible(column.of_service(service)) for column in columns]
        yield service, visible(f"{mark}{name_of(service)}"), cells
        if label_of is None:
            continue
        for each in service.backends:
            cells = [visible(column.of_backend(each)) for column in columns]
            yield service, visible(f"    {label_of(each)}"), cells


def _pod_or_address(backend: BackendRate) -> str:
    if backend.pod:
        return f"{backend.pod}:{backend.port}"
    return socket_address(backend.address, backend.port)


def _pod_and_address(backend: BackendRate) -> str:
    where = socket_address(backend.address, backend.port)
    return f"{backend.pod} {where}" if backend.pod else where


def _shortened(label: str, width: int) -> str:
    """The mark and the end of a label: the start, the namespace, tells less."""
    if len(label) <= width:
        return label
    return f"{label[: len(_MARK)]}…{label[len(_MARK) + 1 - width :]}"
