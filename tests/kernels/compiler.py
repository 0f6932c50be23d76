# SPDX-License-Identifier: Apache-2.0
"""Compiles for an emulated machine: requests and results are files in a shared folder."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.load.bytecode import packed
from ebpflb.dataplane.load.compile import compile_and_pin
from ebpflb.dataplane.load.compile_cache import DIRECTORY, find, key
from ebpflb.errors import EbpflbError
from tests.kernels.errors import KernelError

REQUEST, RESULT, FAILED = ".request", ".bytecode", ".failed"


class Compiler:
    """The next machine reuses what was compiled once."""

    def __init__(self) -> None:
        self._known: dict[str, bytes] = {}

    def answer(self, folder: Path) -> None:
        """Process the requests in a folder, one after the other."""
        for request in folder.glob(f"*{REQUEST}"):
            self._answer(request)
            request.unlink()

    def _answer(self, request: Path) -> None:
        name, wanted = request.stem, json.loads(request.read_text())
        if name not in self._known:
            try:
                self._known[name] = compiled(**wanted)
            except EbpflbError as error:
                _write(request.with_suffix(FAILED), str(error).encode())
                return
        _write(request.with_suffix(RESULT), self._known[name])


def compiled(text: str, cflags: Sequence[str]) -> bytes:
    """The compiled object of a text, packed as in the agent's cache. It creates the maps too.

    They no longer exist when this returns. Errors: of compile_and_pin, and KernelError.
    """
    with tempfile.TemporaryDirectory() as folder:
        pins = Path(folder)
        libc.mount_bpffs(pins, "ebpflb-kernels")
        try:
            compile_and_pin(text, {"LB_PIN_MAPS": f'"{pins}"'}, pins, names=(), flags=cflags)
        finally:
            libc.unmount(pins)
    kept = find(DIRECTORY, key(text, cflags) or "")
    if kept is None:
        raise KernelError(f"what was compiled is not kept in {DIRECTORY}")
    return packed(kept)


def _write(path: Path, content: bytes) -> None:
    """Atomically, for readers inside the machine."""
    building = path.with_suffix(".new")
    building.write_bytes(content)
    building.rename(path)
