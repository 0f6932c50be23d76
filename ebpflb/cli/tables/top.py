# SPDX-License-Identifier: Apache-2.0
"""The table of `ebpflb top`: its columns, and the order of the rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import click

from ebpflb.cli.options import check_served, options
from ebpflb.cli.render import has_colours
from ebpflb.cli.table import Column, TextTable
from ebpflb.config.values import socket_address
from ebpflb.model.ejection import EjectionState
from ebpflb.model.flow import BackendRate, ServiceRate

_UNITS = ("", "k", "M", "G", "T")
_STEP = 1000
_BAR_CELLS = 8
_TROUBLE = {"fg": "red", "bold": True}


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


def _known(count: int | None) -> str:
    return "-" if count is None else str(count)


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


def _marked_name(service: ServiceRate) -> str:
    return f"{'!' if service.troubles else ' '} {name_of(service)}"


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


def _label(backend: BackendRate) -> str:
    """The pod, or the address if it is not known."""
    port = f":{backend.port}" if backend.port else ""
    where = f"{backend.pod}{port}" if backend.pod else ""
    return f"    {where or socket_address(backend.address, backend.port)}"


def _long_label(backend: BackendRate) -> str:
    """The pod and the address, as far as they are known."""
    address = socket_address(backend.address, backend.port) if backend.address else ""
    return f"    {' '.join(filter(None, (backend.pod, address)))}"


def _column(
    title: str,
    width: int,
    rank: int,
    cell: Callable[[ServiceRate], str],
    part: Callable[[BackendRate], str],
) -> Column[ServiceRate]:
    return Column(title, cell, part, width=width, rank=rank, right=True)


COLUMNS: Sequence[Column[ServiceRate]] = (
    Column(
        "SERVICE",
        _marked_name,
        _label,
        width=16,
        cut=True,
    ),
    _column("CONN/S", 6, 1, lambda s: rate(s.connections), lambda b: rate(b.connections)),
    _column("ACTIVE", 6, 2, lambda s: _known(s.active), lambda b: _known(b.active)),
    _column("FAIL/S", 6, 1, lambda s: rate(s.lost), lambda b: rate(b.failed)),
    _column("B/S TO/FROM", 11, 4, _both_ways, _both_ways),
    _column("SPREAD", 10, 5, spread, lambda b: f"{percent(b.share)} {bar(b.share)}".strip()),
    _column("REMOTE", 6, 6, lambda s: percent(s.cross_node_share), lambda _: ""),
    Column("BACKENDS", lambda s: _known(s.endpoints), _state, width=19, rank=7),
    Column("TROUBLE", _troubles, lambda b: b.trouble, width=14, wraps=True),
)

SORTS: Mapping[str, Callable[[ServiceRate], float]] = {
    "connections": lambda s: s.connections,
    "active": lambda s: s.active or 0,
    "bytes": lambda s: s.original_bytes + s.reply_bytes,
    "failures": lambda s: s.lost,
    "spread": lambda s: s.imbalance,
    "trouble": lambda s: len(s.troubles),
}

SORT_NAMES = (*SORTS, "name")


interval_option = click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of a sample.",
)
sample_options = options(
    interval_option,
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
"""How long to count, and what to show."""


def chosen_by(name: str, services: Iterable[ServiceRate]) -> list[ServiceRate]:
    """The ports of one Service, by NAMESPACE/NAME, or all for "". ConfigError if it has none."""
    known = list(services)
    if not name:
        return known
    names = [f"{each.namespace}/{each.service}" for each in known]
    found = [each for each, its in zip(known, names, strict=True) if its == name]
    check_served(name, found, set(names))
    return found


def without_idle(services: Iterable[ServiceRate], *, every: bool) -> list[ServiceRate]:
    """Those that carry something or are in trouble, or all if `every`."""
    return [each for each in services if every or not each.is_idle]


def ordered(services: Iterable[ServiceRate], sort: str) -> list[ServiceRate]:
    """Largest first, then by name; `name` sorts by name alone."""
    by_name = sorted(services, key=name_of)
    return sorted(by_name, key=SORTS[sort], reverse=True) if sort in SORTS else by_name


def top_lines(
    services: Sequence[ServiceRate],
    *,
    backends: bool,
    every: bool,
    is_wide: bool = False,
    columns: Sequence[Column[ServiceRate]] = COLUMNS,
) -> Iterator[str | TextTable[ServiceRate]]:
    """A row for each Service port, and one for each backend if `backends`; how many are not shown.

    A `!` before the name marks a Service in trouble. `every`: also idle ones. `is_wide`: pods with
    their addresses.
    """
    if is_wide:
        columns = [each._replace(part=_long_label) if each.cut else each for each in columns]
    found = without_idle(services, every=every)
    style = _TROUBLE if has_colours() else {}
    yield TextTable(
        columns,
        found,
        lambda service: service.backends if backends else (),
        gap=" ",
        style=lambda service: style if service.troubles else {},
    )
    if hidden := len(services) - len(found):
        noun = "Service port is" if hidden == 1 else "Service ports are"
        yield f"{hidden} idle {noun} not shown (--all)"
