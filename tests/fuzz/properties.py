# SPDX-License-Identifier: Apache-2.0
"""The property tests of `make test`, with other examples and another order of hashes."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tests.fuzz.fuzzer import Round

_FOLDERS = ("tests/unit", "tests/bpf")


@contextmanager
def properties() -> Iterator[Round]:
    """All of them in each round."""
    yield partial(play_properties, _FOLDERS)


def play_properties(paths: Sequence[str], seed: int) -> str:
    """AssertionError has pytest's report of the failures, with hypothesis' examples."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "hypothesis", "-p", "no:cacheprovider"]
    options = ["--hypothesis-profile=fuzz", f"--hypothesis-seed={seed}"]
    ran = subprocess.run(
        [*command, *options, *paths],
        env=os.environ | {"PYTHONHASHSEED": str(seed)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if ran.returncode:
        raise AssertionError(ran.stdout)
    return re.sub(r",.*", "", ran.stdout.splitlines()[-1])
