# SPDX-License-Identifier: Apache-2.0
"""Objects whose bytes libFuzzer makes, guided by the lines of ours that they reach."""

import json
import os
import re
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ebpflb.model.changes import Kind
from tests.fuzz.fuzzer import Round
from tests.odd_object import odd

_RUNS = 5_000
_LONGEST = 4096
_LAST_LINES = 40
_VALUES = [
    "{}",
    "[]",
    "null",
    "true",
    "-1",
    "1e999",
    '"::"',
    '"0.0.0.0/0"',
    r'"\ud800"',
    "[[[[[[[[",
]


@contextmanager
def objects() -> Iterator[Round]:
    """Five thousand in each round, from one of each kind on."""
    yield play_objects


def play_objects(seed: int, runs: int = _RUNS) -> str:
    """AssertionError has the traceback and, in base64, the object, which counts.

    libFuzzer does not draw quite the same again.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (seeds := folder / "seeds").mkdir()
        _write_seeds(seeds)
        _write_dictionary(folder / "words")
        flags = {
            # 0 would be another one each time.
            "seed": seed + 1,
            "runs": runs,
            "max_len": _LONGEST,
            "dict": folder / "words",
            "artifact_prefix": f"{folder}/",
        }
        command = [sys.executable, "-m", "tests.fuzz.coverage"]
        ran = subprocess.run(
            [*command, *(f"-{flag}={value}" for flag, value in flags.items()), str(seeds)],
            env=os.environ | {"PYTHONHASHSEED": str(seed)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
        found = [b64encode(each.read_bytes()).decode() for each in folder.glob("*-*")]
    if ran.returncode:
        lines = ran.stdout.splitlines()[-_LAST_LINES:]
        raise AssertionError("\n".join([*lines, "The kind and the object:", *found]))
    covered = re.search(r"DONE +cov: (\d+)", ran.stdout)
    return f"{runs} objects, {covered[1] if covered else 0} branches"


def _write_seeds(folder: Path) -> None:
    """An object of each kind as the API server would send it; the first byte is the kind."""
    for number, kind in enumerate(Kind):
        raw = json.dumps(odd(kind), separators=(",", ":")).encode()
        (folder / kind).write_bytes(bytes([number]) + raw)


def _write_dictionary(file: Path) -> None:
    """Words to put together: what the objects of all kinds consist of."""
    words = {json.dumps(word) for kind in Kind for word in _words(odd(kind))}
    quoted = (json.dumps(word) for word in sorted(words | set(_VALUES)))
    file.write_text("".join(f"{word}\n" for word in quoted))


def _words(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield name
            yield from _words(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _words(inner)
    else:
        yield value
