# SPDX-License-Identifier: Apache-2.0
"""The options of `top --by zone`, and its table."""

from collections.abc import Iterator, Sequence
from typing import Any

import click
from click.core import ParameterSource

from ebpflb.cli.options import options
from ebpflb.cli.table import Column, TextTable
from ebpflb.cli.tables.top import rate
from ebpflb.kubectl.zones.prices import PriceOf, prices
from ebpflb.kubectl.zones.traffic import HOURS_OF_MONTH, ZoneTraffic

# Options that choose or arrange Services and backends.
_OF_SERVICES = ("at", "window", "sort", "backends", "every")


def _price_of(_ctx: click.Context, _param: click.Parameter, given: str | None) -> PriceOf | None:
    try:
        return None if given is None else prices(given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


zone_options = options(
    click.option(
        "--by",
        type=click.Choice(["zone"]),
        help="Show traffic between the zones of clients and of backends.",
    ),
    click.option(
        "--price",
        metavar="FILE-OR-NUMBER",
        callback=_price_of,
        help="With --by zone: the price of a GB (10^9 bytes) that crosses zones.",
    ),
)


def check_options(given: dict[str, Any]) -> None:
    """UsageError for --price without --by, or if --by does not work with an option."""
    if not given["by"]:
        if given["price"]:
            raise click.UsageError("--price needs --by zone")
        return
    context = click.get_current_context()
    for parameter in context.command.params:
        name = parameter.name or ""
        is_given = context.get_parameter_source(name) is not ParameterSource.DEFAULT
        if name in _OF_SERVICES and is_given:
            raise click.UsageError(f"--by zone does not work with {parameter.opts[0]}")


def zone_lines(
    found: Sequence[ZoneTraffic], *, has_prices: bool
) -> Iterator[str | TextTable[ZoneTraffic]]:
    """A row for each pair of zones, and what crosses zones in all."""
    yield TextTable([*_COLUMNS, *(_COSTS if has_prices else ())], found)
    crossing = [each for each in found if each.crosses]
    connections = rate(sum(each.connections for each in crossing))
    original = rate(sum(each.original_bytes for each in crossing))
    reply = rate(sum(each.reply_bytes for each in crossing))
    yield f"across zones: {connections} connections/s, {original}/{reply} B/s to/from backends"
    if has_prices:
        hour = sum(each.cost_per_hour or 0 for each in crossing)
        month = sum(each.cost_per_month or 0 for each in crossing)
        yield f"cost: {hour:,.4f} per hour, {month:,.2f} per month of {HOURS_OF_MONTH} hours"
        pairs = {_pair(each) for each in crossing if each.cost_per_hour is None}
        if pairs:
            yield f"without a price, and counted as free: {', '.join(sorted(pairs))}"
    if any(not (each.client_zone and each.backend_zone) for each in found):
        yield "unknown: nodes without a zone label, or endpoints without a zone; not counted above"


def _pair(each: ZoneTraffic) -> str:
    return " ".join(sorted((each.client_zone, each.backend_zone)))


def _cost(cost: float | None, digits: int) -> str:
    return "-" if cost is None else f"{cost:,.{digits}f}"


def _both_ways(each: ZoneTraffic) -> str:
    return f"{rate(each.original_bytes)}/{rate(each.reply_bytes)}"


_COLUMNS: Sequence[Column[ZoneTraffic]] = (
    Column("CLIENT ZONE", lambda each: each.client_zone or "unknown"),
    Column("BACKEND ZONE", lambda each: each.backend_zone or "unknown"),
    Column("CONN/S", lambda each: rate(each.connections), right=True),
    Column("B/S TO/FROM", _both_ways, right=True),
)
_COSTS: Sequence[Column[ZoneTraffic]] = (
    Column("PER HOUR", lambda each: _cost(each.cost_per_hour, 4), right=True),
    Column("PER MONTH", lambda each: _cost(each.cost_per_month, 2), right=True),
)
