# SPDX-License-Identifier: Apache-2.0
"""Results as rows of one table: on the terminal, and stored in docs/development/benches.md.

Comparisons with other proxies also become the chart of docs/performance.md.
"""

import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.harness.rounds import Comparison, percentile, span

_DOCS = Path(__file__).parents[3] / "docs"
DOCUMENT = _DOCS / "development" / "benches.md"
CHARTED = _DOCS / "performance.md"

_HEADINGS = ("bench", "case", "measured", "result", "target", "")
_BLOCK = re.compile(r"(?<=<!-- bench: begin -->\n).*?(?=<!-- bench: end -->)", re.DOTALL)
_CHART = re.compile(r"(?<=<!-- chart: begin -->\n).*?(?=<!-- chart: end -->)", re.DOTALL)
_CHARTED_SIZE = "1,000 Services"
_BAR = 40
_MACHINE = re.compile(r"^Machine: .*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Row:
    """One line: `result` is compared with `target`; verdict is OK, short, or empty."""

    bench: str
    case: str
    measured: str
    result: str
    target: str = ""
    verdict: str = ""


def ratio_row(bench: str, case: str, compared: Comparison, unit: str, target: float | None) -> Row:
    """ebpflb relative to the other; `target`: the least ratio of the medians, None for no
    target.
    """
    ours, other, ratio = span(compared.ours), span(compared.other), compared.ratio
    return Row(
        bench,
        case,
        f"{ours.median:,.0f} of {other.median:,.0f} {unit}",
        f"{ratio.median:.3f} ({ratio.low:.3f} to {ratio.high:.3f})",
        f">= {target:.2f}" if target else "",
        _verdict(target is None or ratio.median >= target) if target else "",
    )


def limit_row(bench: str, case: str, values: Sequence[float], unit: str, target: float) -> Row:
    """Values of which the median must stay below `target`."""
    found = span(values)
    measured = f"{found.low:,.2f} to {found.high:,.2f} {unit}, {len(values)} rounds"
    result = f"{found.median:,.2f} {unit}"
    return Row(
        bench, case, measured, result, f"< {target:g} {unit}", _verdict(found.median < target)
    )


def plain_row(bench: str, case: str, value: float, unit: str) -> Row:
    """One value without a target."""
    return Row(bench, case, "", f"{value:,.2f} {unit}")


def percentile_row(
    bench: str, case: str, values: Sequence[float], percent: int, unit: str, target: float = 0
) -> Row:
    """Values of which a percentile must stay below `target`; 0: no target."""
    worst, middle = percentile(values, percent), percentile(values, 50)
    measured = f"p50 {middle:,.2f}, most {max(values):,.2f} {unit}, {len(values):,} times"
    result = f"p{percent} {worst:,.2f} {unit}"
    if not target:
        return Row(bench, case, measured, result)
    return Row(bench, case, measured, result, f"< {target:g} {unit}", _verdict(worst < target))


def show(rows: Iterable[Row], console: Console) -> None:
    """Print the table."""
    table = Table(*_HEADINGS)
    for row in rows:
        table.add_row(*astuple(row), style="" if row.verdict != "short" else "bold red")
    console.print(table)


def keep(rows: Sequence[Row], names: Sequence[str]) -> str:
    """Write the rows into the document, and report the change.

    `names`: all benches in order. Rows of benches that did not run are kept, unless they were
    measured on another machine: then nothing is written.
    """
    text = DOCUMENT.read_text()
    machine = f"Machine: {machine_line()}."
    ran = {row.bench for row in rows}
    kept = [] if ran == set(names) else [row for row in rows_in(text) if row.bench not in ran]
    if kept and (old := _MACHINE.search(text)) and old[0] != machine:
        return f"{DOCUMENT.name} is left as it is: its other rows are of another machine"
    order = {name: place for place, name in enumerate(names)}
    everything = sorted([*kept, *rows], key=lambda row: order.get(row.bench, len(order)))
    block = f"{machine}\n\n{_markdown(everything)}\n"
    DOCUMENT.write_text(_BLOCK.sub(lambda _: block, text))
    drawn = chart(everything)
    CHARTED.write_text(_CHART.sub(lambda _: drawn, CHARTED.read_text()))
    return f"{DOCUMENT.name} is up to date"


def chart(rows: Iterable[Row]) -> str:
    """Bars of the bench `against`, a group for each path to a Service, in Markdown."""
    groups: dict[str, list[tuple[float, str]]] = {}
    for row in rows:
        names, _, way = row.case.partition(": ")
        if row.bench == "against" and names.endswith(_CHARTED_SIZE) and "straight" not in way:
            other = names.removesuffix(f", {_CHARTED_SIZE}")
            name = other if other == "Cilium" else f"kube-proxy, {other}"
            groups.setdefault(way, [(1.0, "ebpflb")]).append((1 / _ratio(row), name))
    lines = [
        line
        for way, bars in groups.items()
        for line in (way, *(_bar(share, name) for share, name in sorted(bars, reverse=True)), "")
    ]
    return "\n".join(["```", *lines[:-1], "```"]) + "\n"


def _bar(share: float, name: str) -> str:
    return f"  {share:.2f} {'█' * round(_BAR * share)} {name}"


def _ratio(row: Row) -> float:
    return float(row.result.split()[0])


def machine_line() -> str:
    """Kernel, processor and number of cores."""
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    chip = model[1] if model else platform.machine()
    return f"Linux {platform.release()}, {os.cpu_count()} cores of {chip}"


def _markdown(rows: Iterable[Row]) -> str:
    lines = [_HEADINGS, ["---"] * len(_HEADINGS), *(astuple(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |".replace("  ", " ") for line in lines) + "\n"


def rows_in(text: str) -> list[Row]:
    """The rows in a document."""
    block = _BLOCK.search(text)
    lines = [line for line in (block[0].splitlines() if block else []) if line.startswith("| ")]
    return [Row(*map(str.strip, line.strip("|").split("|"))) for line in lines[2:]]


def _verdict(is_met: bool) -> str:
    return "OK" if is_met else "short"
