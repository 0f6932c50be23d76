# SPDX-License-Identifier: Apache-2.0
"""`make fuzz`, or `python -m tests.fuzz [NAME...]`: rounds with new seeds while there is time."""

import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from random import SystemRandom

import click

from tests.fuzz.answers import answers
from tests.fuzz.churn import churn
from tests.fuzz.conntrack import conntrack
from tests.fuzz.frames import frames
from tests.fuzz.fuzzer import Fuzzer
from tests.fuzz.guided import guided
from tests.fuzz.packets import packets
from tests.fuzz.properties import properties
from tests.fuzz.targets import TARGETS
from tests.leftovers import begin_run

FUZZERS: dict[str, Fuzzer] = {
    "packets": packets,
    "frames": frames,
    "answers": answers,
    "conntrack": conntrack,
    "properties": properties,
    "churn": churn,
    **{name: guided(name) for name in TARGETS},
}

# Python hash seeds, the shortest ones.
_SEEDS = 1 << 32
_SECONDS = 600.0


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(FUZZERS)), metavar="[NAME]...")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    help="No round begins later, but each NAME has one.  [default: 600, or 0 with --seed]",
)
@click.option(
    "--seed",
    type=click.IntRange(0, _SEEDS - 1),
    help="Of the first round; the following ones count on.  [default: another one each time]",
)
def main(names: Sequence[str], seconds: float | None, seed: int | None) -> None:
    """Look for what does not hold for every seed, in rounds that take turns.

    NAME is packets, answers, conntrack, properties or churn, or what libFuzzer makes inputs for:
    frames, objects, manifests, settings, selectors, queries, page, agents or api. None means all.
    The seed of each round is printed, and after a failure the command that repeats just that round,
    or that input.
    """
    if os.geteuid() != 0:
        raise click.ClickException("needs root, for network namespaces and eBPF")
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    begin_run(click.echo)
    if seconds is None:
        seconds = _SECONDS if seed is None else 0
    first = SystemRandom().randrange(_SEEDS) if seed is None else seed
    failed = fuzz({name: FUZZERS[name] for name in names or FUZZERS}, seconds, first)
    for each in failed:
        click.echo(f"again: {each}")
    sys.exit(bool(failed))


def fuzz(fuzzers: Mapping[str, Fuzzer], seconds: float, first: int) -> list[str]:
    """Returns the command for each round that failed, which was the last of its fuzzer."""
    deadline = time.monotonic() + seconds
    failed: list[str] = []
    with ExitStack() as stack:
        rounds = {name: stack.enter_context(fuzzer()) for name, fuzzer in fuzzers.items()}
        for number in count():
            seed = (first + number) % _SEEDS
            for name, play in list(rounds.items()):
                if number and time.monotonic() > deadline:
                    return failed
                click.echo(f"{name} --seed {seed}: ", nl=False)
                try:
                    click.echo(play(seed))
                except Exception:  # noqa: BLE001  whatever is raised was found
                    click.echo(f"failed\n{traceback.format_exc()}")
                    failed.append(f"make fuzz ARGS='{name} --seed {seed}'")
                    del rounds[name]
            if not rounds:
                return failed
    return failed


if __name__ == "__main__":
    main()
