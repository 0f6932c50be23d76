# SPDX-License-Identifier: Apache-2.0
"""`make bench`, or `python -m tests.bench [NAME...]`: runs benches and stores their table."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from subprocess import SubprocessError
from typing import Any

import click
from rich.console import Console

from ebpflb.errors import EbpflbError
from tests.bench import (
    api,
    attached,
    bulk,
    busy,
    change,
    connect,
    dsr,
    fill,
    memory,
    node_port,
    programs,
    programs_live,
    scrape,
    shared,
    sock_ops,
    start,
    udp,
    versions,
)
from tests.bench.channels import spread
from tests.bench.complaints import annotated, distance, noisy
from tests.bench.harness.alone import alone
from tests.bench.harness.options import BenchError, Options
from tests.bench.harness.report import Row, keep, machine_line, show
from tests.bench.kubectl import many_nodes, questions, relayed
from tests.bench.proxies import against, beside, first_packet, fortio
from tests.bench.xdp import hooks, live, passed, peers, services
from tests.leftovers import begin_run

Bench = Callable[[Options], Iterable[Row]]

BENCHES: dict[str, Bench] = {
    "connect": connect.run,
    "attached": attached.run,
    "sock_ops": sock_ops.run,
    "nodeport": node_port.run,
    "dsr": dsr.run,
    "bulk": bulk.run,
    "udp": udp.run,
    "change": change.run,
    "busy": busy.run,
    "shared": shared.run,
    "fill": fill.run,
    "memory": memory.run,
    "start": start.run,
    "growth": memory.growth,
    "api": api.run,
    "sizing": memory.sizing,
    "many_nodes": many_nodes.run,
    "questions": questions.run,
    "relay": relayed.run,
    "beside": beside.run,
    "against": against.run,
    "first_packet": first_packet.run,
    "fortio": fortio.run,
    "programs": programs.run,
    "programs_live": programs_live.run,
    "xdp": hooks.run,
    "live": live.run,
    "services": services.run,
    "peers": peers.run,
    "passed": passed.run,
    "scrape": scrape.run,
    "channels": spread.run,
    "annotated": annotated.run,
    "distance": distance.run,
    "noisy": noisy.run,
}
# What --other runs; the first one unless others are named.
BESIDE: dict[str, Callable[[Path, Options], Iterable[Row]]] = {
    "versions": versions.run,
    "programs_live": programs_live.run_beside,
}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(BENCHES)), metavar="[NAME]...")
@click.option("--rounds", default=25, show_default=True, help="Rounds of each comparison.")
@click.option("--seconds", default=0.5, show_default=True, help="Of one measurement.")
@click.option("--quick", is_flag=True, help="A tenth of the Services; no document is written.")
@click.option(
    "--other",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="A checkout to compare with, in turns: rates, or programs_live; no document is written.",
)
@click.option("--only", default="", help="Cases with this text, of --other and programs_live.")
def main(names: tuple[str, ...], other: Path | None, **given: Any) -> None:
    """Measure speed and size; the results replace those in docs/development/benches.md.

    NAME is connect, attached, sock_ops, nodeport, dsr, bulk, udp, change, busy, shared, fill,
    memory, start, growth, api, sizing, many_nodes, questions, relay, beside, against, first_packet,
    fortio, programs, programs_live, xdp, live, services, peers, passed, scrape, channels,
    annotated, distance or noisy; none means all. channels needs grpcio.
    """
    if os.geteuid() != 0:
        raise click.ClickException("needs root, for network namespaces and eBPF")
    console = Console(width=None if sys.stdout.isatty() else 140)
    begin_run(console.print)
    console.print(machine_line())
    rows: list[Row] = []
    failed = []
    options = Options(**given)
    for name, bench in _wanted(names, other).items():
        try:
            with alone(lambda: console.print("waits for another bench", style="dim")):
                rows += _run(name, bench(options), console)
        except (BenchError, EbpflbError, OSError, SubprocessError) as error:
            failed.append(name)
            console.print(f"{name}: {error}", style="bold red")
    show(rows, console)
    if rows and not (options.quick or options.only or other):
        console.print(keep(rows, list(BENCHES)))
    sys.exit(1 if failed else 0)


def _wanted(names: Sequence[str], other: Path | None) -> Mapping[str, Bench]:
    if other is None:
        return {name: BENCHES[name] for name in names or BENCHES}
    if strangers := set(names) - set(BESIDE):
        raise click.UsageError(f"not with --other: {', '.join(sorted(strangers))}")
    return {name: partial(BESIDE[name], other) for name in names or list(BESIDE)[:1]}


def _run(name: str, found: Iterable[Row], console: Console) -> list[Row]:
    console.print(f"{name} ...", style="dim")
    rows = []
    for row in found:
        console.print(f"  {row.case}: {row.measured}: {row.result} {row.verdict}")
        rows.append(row)
    return rows


if __name__ == "__main__":
    main()
