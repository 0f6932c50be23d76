# SPDX-License-Identifier: Apache-2.0
"""Services, slices, Nodes, devices and addresses are created and deleted; agents keep none of
them.
"""

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
    """One lab; growth shows at the end of the round that caused it."""
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
