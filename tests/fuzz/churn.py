# SPDX-License-Identifier: Apache-2.0
"""Services, slices, Nodes, devices and addresses come and go; nothing of them stays in an agent."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.churn.churn import churning
from tests.e2e.churn.footprint import shown
from tests.fuzz.fuzzer import Round


@contextmanager
def churn() -> Iterator[Round]:
    """One lab; what has grown shows after the round in which it has."""
    with tempfile.TemporaryDirectory() as logs, churning(Path(logs)) as churn:

        def play_round(seed: int) -> str:
            try:
                held, said = churn.play(seed)
            except pytest.fail.Exception as error:  # no Exception
                raise AssertionError(str(error)) from error
            return "; ".join(
                f"{name}: {shown(each)}, {said[name]} bytes logged" for name, each in held.items()
            )

        yield play_round
