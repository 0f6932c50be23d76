# SPDX-License-Identifier: Apache-2.0
"""`make test-matrix`, or `python -m tests.e2e.modes [TESTS...]`: runs tests in other modes.

Without TESTS: tests/e2e/modes in all modes, and then the tests of rules, traffic, networks and
operations in enough modes to cover every pair of values. With TESTS: these, in those modes.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from tests.e2e.mode import Mode
from tests.e2e.modes.all_modes import all_modes, mode_id, pairwise_modes

_HERE = Path(__file__).parent
_ASKED = [_HERE.parent / folder for folder in ("rules", "traffic", "networks", "operations")]


@click.command()
@click.argument("tests", nargs=-1)
@click.option("--only", default="", help="Modes with this text, such as xdp=native,dsr=all.")
def main(tests: Sequence[str], only: str) -> None:
    """Run end-to-end TESTS in one mode of the agents after the other."""
    if os.geteuid() != 0:
        raise click.ClickException("needs root, for network namespaces and eBPF")
    runs = [(mode, tests or [str(each) for each in _ASKED]) for mode in pairwise_modes()]
    if not tests:
        runs = [(mode, [str(_HERE)]) for mode in all_modes()] + runs
    table = Table("mode", "tests", "result", "seconds")
    again: list[str] = []
    for mode, chosen in runs:
        if only in mode_id(mode):
            click.echo(f"==> {mode_id(mode)}")
            began = time.monotonic()
            result, failed = _run(mode, chosen)
            names = " ".join(Path(each).name for each in chosen)
            table.add_row(mode_id(mode), names, result, f"{time.monotonic() - began:.0f}")
            again += failed
    Console(width=None if sys.stdout.isatty() else 140).print(table)
    for each in again:
        click.echo(f"again: {each}")
    sys.exit(bool(again))


def _run(mode: Mode, tests: Sequence[str]) -> tuple[str, list[str]]:
    """The last line of pytest, and the command that repeats the failures."""
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    again, last = [], ""
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, text=True, env=os.environ | mode.environment
    ) as pytest:
        assert pytest.stdout
        try:
            for line in pytest.stdout:
                click.echo(line, nl=False)
                if line.startswith("again: "):
                    again.append(line.removeprefix("again: ").strip())
                last = line.strip() or last
        except KeyboardInterrupt:
            pytest.send_signal(signal.SIGINT)
            raise
    if pytest.returncode and not again:
        again.append(f"{' '.join(argv)}  # in mode {mode_id(mode)}: {last}")
    return last, again


if __name__ == "__main__":
    main()
