# SPDX-License-Identifier: Apache-2.0
"""`make bench`, or `python -m tests.bench [NAME...]`: run benches and keep their table."""

import os
import sys
from collections.abc import Callable, Iterable
from subprocess import SubprocessError

import click
from rich.console import Console

from ebpflb.errors import EbpflbError
from tests.bench import (
    against,
    api,
    attached,
    beside,
    bulk,
    change,
    connect,
    fill,
    memory,
    node_port,
    programs,
    scrape,
    sock_ops,
    start,
)
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, keep, machine_line, show

Bench = Callable[[Options], Iterable[Row]]

BENCHES: dict[str, Bench] = {
    "connect": connect.run,
    "attached": attached.run,
    "sock_ops": sock_ops.run,
    "nodeport": node_port.run,
    "bulk": bulk.run,
    "change": change.run,
    "fill": fill.run,
    "memory": memory.run,
    "start": start.run,
    "api": api.run,
    "beside": beside.run,
    "against": against.run,
    "programs": programs.run,
    "scrape": scrape.run,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHES)), metavar="[NAME]...")
@click.option("--rounds", default=25, show_default=True, help="Rounds of each comparison.")
@click.option("--seconds", default=0.5, show_default=True, help="Of one measurement.")
@click.option("--quick", is_flag=True, help="A tenth of the Services; no document is written.")
def main(names: tuple[str, ...], rounds: int, seconds: float, quick: bool) -> None:
    """Measure speed and size; the results replace those in docs/performance.md.

    NAME is connect, attached, sock_ops, nodeport, bulk, change, fill, memory, start, api, beside,
    against, programs or scrape; none means all.
    """
    if os.geteuid() != 0:
        raise click.ClickException("needs root, for network namespaces and eBPF")
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(machine_line())
    rows: list[Row] = []
    failed = []
    options = Options(rounds, seconds, quick)
    for name in names or BENCHES:
        try:
            rows += _run(name, options, console)
        except (BenchError, EbpflbError, OSError, SubprocessError) as error:
            failed.append(name)
            console.print(f"{name}: {error}", style="bold red")
    show(rows, console)
    if rows and not quick:
        console.print(keep(rows, list(BENCHES)))
    sys.exit(1 if failed else 0)


def _run(name: str, options: Options, console: Console) -> list[Row]:
    console.print(f"{name} ...", style="dim")
    rows = []
    for row in BENCHES[name](options):
        console.print(f"  {row.case}: {row.result} {row.verdict}")
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
