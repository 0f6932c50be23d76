# SPDX-License-Identifier: Apache-2.0
"""Inputs from libFuzzer, guided by the branches of ebpflb that they reach.

`python -m tests.fuzz.guided TARGET SECONDS` searches for new ones, and stores the few that reach
branches which the target's examples do not.
"""

import os
import re
import subprocess
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.fuzz.corpus import keep, kept
from tests.fuzz.fuzzer import Fuzzer, Round
from tests.fuzz.targets import target

_RUNS = 5_000
_LONGEST = 4096
_LAST_LINES = 40
# libFuzzer's names for files with inputs that fail.
_HARM = ("crash-*", "timeout-*", "oom-*", "leak-*")


def guided(name: str) -> Fuzzer:
    """Rounds for a target, each of which continues from the coverage of the earlier ones."""

    @contextmanager
    def made() -> Iterator[Round]:
        with tempfile.TemporaryDirectory() as folder:
            begin(name, Path(folder))
            yield partial(play_guided, coverage(name), Path(folder))

    return made


class Program(NamedTuple):
    """A program with libFuzzer. again: the module that runs a single input."""

    command: Sequence[str]
    again: str


def coverage(name: str) -> Program:
    """The program of a target in Python."""
    module = f"tests.fuzz.coverage {name}"
    return Program([sys.executable, "-m", *module.split()], module)


def begin(name: str, folder: Path) -> None:
    """Write the target's initial inputs."""
    found = target(name)
    (reached := folder / "reached").mkdir()
    for number, raw in enumerate([*found.seeds, *kept(name)]):
        (reached / str(number)).write_bytes(raw)
    write_words(folder, found.words)


def write_words(folder: Path, words: Iterable[bytes]) -> None:
    """Write a dictionary."""
    (folder / "words").write_text("".join(f'"{_quoted(word)}"\n' for word in words))


def play_guided(program: Program, folder: Path, seed: int, limit: str = f"-runs={_RUNS}") -> str:
    """AssertionError has the traceback and, in base64, the input, which counts.

    libFuzzer is not fully deterministic, even with the same seed.
    """
    flags = {
        # 0 would mean a random seed.
        "seed": seed + 1,
        "max_len": _LONGEST,
        "timeout": 60,
        "dict": folder / "words",
        "artifact_prefix": f"{folder}/",
    }
    given = [f"-{flag}={value}" for flag, value in flags.items()]
    ran = _run(program, seed, [*given, limit, folder / "reached"])
    found = [each.read_bytes() for harm in _HARM for each in folder.glob(harm)]
    if ran.returncode:
        lines = ran.stdout.splitlines()[-_LAST_LINES:]
        again = f"| base64 -d >input; {sys.executable} -m {program.again} input"
        inputs = [f"echo {b64encode(each).decode()} {again}" for each in found]
        raise AssertionError("\n".join([*lines, *inputs]))
    done = re.search(r"DONE +cov: (\d+)", ran.stdout)
    runs = re.search(r"Done (\d+) runs", ran.stdout)
    return f"{runs[1] if runs else 0} inputs, {done[1] if done else 0} branches"


def _run(
    program: Program, seed: int, flags: Iterable[object]
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [*program.command, *map(str, flags)],
        env=os.environ | {"PYTHONHASHSEED": str(seed)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )


def _quoted(word: bytes) -> str:
    """In the syntax of libFuzzer's dictionaries."""
    plain = set(b"!#$%&'()*+,-./:;<=>?@[]^_`{|}~ ")
    return "".join(
        chr(byte) if byte in plain or (chr(byte).isalnum() and byte < 128) else f"\\x{byte:02x}"
        for byte in word
    )


def main() -> None:
    name, seconds = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        begin(name, folder)
        print(play_guided(coverage(name), folder, 0, f"-max_total_time={seconds}"))
        (least := folder / "least").mkdir()
        _run(coverage(name), 0, ["-merge=1", least, folder / "reached"]).check_returncode()
        keep(name, {each.read_bytes() for each in least.iterdir()} - {*target(name).seeds})


if __name__ == "__main__":
    main()
