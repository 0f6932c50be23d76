# SPDX-License-Identifier: Apache-2.0
"""`make demo`: a small cluster, real traffic, and a table of what was expected and what was seen.

Exit status 1 if one row differs. Takes well under a minute, touches nothing but its own lab.
"""

import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table

from ebpflb.errors import EbpflbError
from ebpflb.lab import demo_changes, demo_paths
from ebpflb.lab.agents import running_agents
from ebpflb.lab.cluster import Lab
from ebpflb.lab.demo_rows import Row
from ebpflb.lab.layout import LabConfig
from ebpflb.lab.teardown import take_down

NAME = "demo"
_DUMP_LINES = 24


def main() -> int:
    """Run the demo."""
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 140)
    try:
        take_down(NAME)
        return _run(console)
    except EbpflbError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


def _run(console: Console) -> int:
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as logs, Lab.up(LabConfig(name=NAME)) as lab:
        console.print(f"A cluster of {len(lab.nodes)} nodes and {len(lab.pods)} pods is up.")
        demo_paths.write_services(lab)
        with running_agents(lab, Path(logs)) as agents:
            console.print("An agent is on each node. Now the traffic.\n")
            rows = list(_show(console, "Paths", demo_paths.rows(lab)))
            rows += _show(console, "Changes under load", demo_changes.rows(lab, agents))
            _show_dump(console, lab)
    wrong = sum(not row.is_right for row in rows)
    console.print(f"\n{len(rows) - wrong} of {len(rows)} rows as expected", end="")
    console.print(f", in {time.monotonic() - begin:.0f} s.")
    return 1 if wrong else 0


def _show(console: Console, title: str, rows: Iterator[Row]) -> list[Row]:
    done = list(rows)
    table = Table("what", "expected", "seen", "", title=title, title_justify="left")
    for row in done:
        mark = "[green]as expected[/]" if row.is_right else "[bold red]DIFFERS[/]"
        table.add_row(row.what, row.expected, row.seen, mark)
    console.print(table)
    return done


def _show_dump(console: Console, lab: Lab) -> None:
    command = [sys.executable, "-m", "ebpflb", "maps", "dump", "--service", "default/rolling"]
    dump = lab.nodes[0].exec(command).stdout.splitlines()
    console.print(
        f"\nOn {lab.nodes[0].name}, `ebpflb maps dump --service default/rolling` prints:\n"
    )
    for line in dump[:_DUMP_LINES]:
        print(f"    {line}")


if __name__ == "__main__":
    sys.exit(main())
