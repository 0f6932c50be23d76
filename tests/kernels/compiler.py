# SPDX-License-Identifier: Apache-2.0
"""Compiles for a machine that is emulated: requests and results are files in a shared folder."""

import os
import subprocess
import sys
from pathlib import Path

from ebpflb.dataplane.source_text import bpf_directory

REQUEST, RESULT, FAILED = ".request", ".bytecode", ".failed"


class Compiler:
    """What was compiled once is there for the next machine too."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def answer(self, folder: Path) -> None:
        """Compile what the requests in a folder ask for, one after the other."""
        for request in folder.glob(f"*{REQUEST}"):
            self._answer(request)
            request.unlink()

    def _answer(self, request: Path) -> None:
        name, wanted = request.stem, request.read_text()
        if name not in self._known:
            child = subprocess.run(
                [sys.executable, "-m", "tests.kernels.bytecode"],
                input=wanted,
                capture_output=True,
                text=True,
                env={**os.environ, "BCC_KERNEL_SOURCE": str(bpf_directory() / "uapi")},
                check=False,
            )
            if child.returncode:
                _write(request.with_suffix(FAILED), child.stderr)
                return
            self._known[name] = child.stdout
        _write(request.with_suffix(RESULT), self._known[name])


def _write(path: Path, content: str) -> None:
    """Whole or not at all, for who looks from inside."""
    building = path.with_suffix(".new")
    building.write_text(content)
    building.rename(path)
