# SPDX-License-Identifier: Apache-2.0
"""The command line, as a test calls it."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ebpflb.cli import main, render

VIEW = Path(__file__).with_name("service_view.txt")
"""What `ebpflb services` prints of a node with a few Services."""


def output_of(*arguments: str, status: int = 0, env: Mapping[str, str] | None = None) -> str:
    """What `ebpflb` prints; `status`: the one it must exit with."""
    done = CliRunner().invoke(main, arguments, env=env)
    assert done.exit_code == status, done.output
    return done.output


def check_narrow(screen: Any, program: click.Group, *arguments: str) -> None:
    """On a terminal of 60 columns no line is wider, and all stands there that does elsewhere."""
    everything = CliRunner().invoke(program, arguments).stdout
    assert max(map(len, everything.splitlines())) > 60
    with screen(60) as shown:
        program(arguments, standalone_mode=False)
    assert max(map(len, shown.lines())) <= 60
    assert Counter("".join(shown.text.split())) == Counter("".join(everything.split()))


def interrupt_after(
    rounds: int, monkeypatch: pytest.MonkeyPatch, between: Callable[[], object] = lambda: None
) -> list[float]:
    """Press Ctrl-C after so many rounds of --watch; gives the pauses. `between`: what happens."""
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == rounds:
            raise KeyboardInterrupt
        between()

    monkeypatch.setattr(render, "time", SimpleNamespace(sleep=sleep))
    return pauses
