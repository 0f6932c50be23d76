# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb.dataplane.load.pins import Pins


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Pins]:
    """Pins on a bpffs of their own."""
    with Pins(tmp_path / "pins") as held:
        yield held
        held.remove_all()
