# SPDX-License-Identifier: Apache-2.0
"""The table of `ebpflb top --at`: a time in the past, by flow records."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import click

from ebpflb.cli.options import Output, checked, moment_option, options
from ebpflb.cli.render import emit, local_time
from ebpflb.cli.table import Column, TextTable
from ebpflb.cli.tables.top import COLUMNS, ordered, top_lines
from ebpflb.config.moment import WINDOW_SECONDS, moment, rfc3339_ns, window
from ebpflb.model.compact.past_rates import PastRates, RecordedTime
from ebpflb.model.flow import ServiceRate

past_options = options(
    moment_option(
        "--at",
        "Show a time in the past, by flow records: 10m for so long ago, 03:10, 2026-11-24T03:10.",
    ),
    click.option(
        "--window",
        metavar="DURATION",
        callback=checked(window),
        help="With --at: how long that time is, which ends then.  [1m]",
    ),
)


class PastWindow(NamedTuple):
    """end: nanoseconds since 1970."""

    end: int
    seconds: float

    @property
    def parameters(self) -> Mapping[str, str]:
        """Of the agent's query, with the same time for all agents."""
        return {"at": rfc3339_ns(self.end), "window": f"{self.seconds:g}"}


def past_window(given: Mapping[str, Any]) -> PastWindow | None:
    """None without --at. UsageError for --window alone."""
    if given["at"]:
        seconds = window(given["window"]) if given["window"] else WINDOW_SECONDS
        return PastWindow(moment(given["at"], time.time_ns()), seconds)
    if given["window"]:
        raise click.UsageError("--window needs --at")
    return None


def show_past(
    past: PastRates,
    wanted: str,
    given: Mapping[str, Any],
    output: Output,
    columns: Sequence[Column[ServiceRate]] = COLUMNS,
) -> None:
    """Print it. `wanted`: NAMESPACE/NAME of the only Service; "" for all. `given`: the options."""
    services = [
        each for each in past.services if wanted in ("", f"{each.namespace}/{each.service}")
    ]
    found = PastRates(past.records, ordered(services, given["sort"]))
    emit(found, output, partial(_lines, found, given, output, columns), found.services)


def _lines(
    past: PastRates,
    given: Mapping[str, Any],
    output: Output,
    columns: Sequence[Column[ServiceRate]],
) -> Iterator[str | TextTable[ServiceRate]]:
    yield "; ".join(_head(past.records))
    is_wide = output == "wide"
    yield from top_lines(
        past.services, backends=given["backends"], every=True, is_wide=is_wide, columns=columns
    )


def _head(found: RecordedTime) -> Iterator[str]:
    """What the numbers are made of, and what they lack."""
    begin, end = (local_time(each)[:-4] for each in (found.begin, found.end))
    yield f"{found.count:,} flow records from {begin} to {end}"
    if found.lost is None:
        yield "how many are missing is not known without kept ones (flow-history-bytes)"
    elif found.lost:
        yield f"up to {found.lost:,} are missing (flow-rate, or not kept)"
    if found.sample == 0:
        yield "only what was refused or dropped is recorded (flow-sample)"
    elif found.sample > 1:
        yield f"one flow in {found.sample:,} is recorded (flow-sample)"
    if not found.oldest:
        yield "no records are kept"
    elif found.oldest > found.begin:
        yield f"records begin at {local_time(found.oldest)[:-4]}"
