# SPDX-License-Identifier: Apache-2.0
"""The stored inputs of each target: corpus/TARGET has one per line, in base64."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

_FOLDER = Path(__file__).with_name("corpus")


def kept(name: str) -> list[bytes]:
    file = _FOLDER / name
    return [b64decode(line) for line in file.read_text().splitlines()] if file.exists() else []


def keep(name: str, inputs: Iterable[bytes]) -> None:
    """Store exactly these."""
    lines = sorted(
        (b64encode(each).decode() for each in inputs), key=lambda each: (len(each), each)
    )
    _FOLDER.mkdir(exist_ok=True)
    (_FOLDER / name).write_text("".join(f"{line}\n" for line in lines))
