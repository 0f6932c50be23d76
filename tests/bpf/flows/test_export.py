# SPDX-License-Identifier: Apache-2.0
"""The flow export on a file system that fills up and has space again later."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ebpflb.observe.flows.export import RotatedFile

PAGES = 4
LINES = [json.dumps({"number": number, "more": "x" * 700}).encode() + b"\n" for number in range(40)]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few pages."""
    options = f"size={PAGES * 4096}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", tmp_path], check=True)


def numbers(path: Path) -> list[int]:
    return [json.loads(line)["number"] for line in path.read_text().splitlines()]


def test_every_line_is_whole_though_the_disk_was_full(small):
    target = small / "flows"
    file = RotatedFile(target, 1 << 20, 2)
    file.write(LINES[:3])
    (small / "another").write_bytes(bytes(2 * 4096))
    with pytest.raises(OSError, match="No space left on device"):
        file.write(LINES[3:20])
    assert numbers(target) == [0, 1, 2]
    (small / "another").unlink()
    file.write(LINES[20:22])
    assert numbers(target) == [0, 1, 2, 20, 21]
