# SPDX-License-Identifier: Apache-2.0
"""Flows as lines of JSON in a file that is rotated by its size, or on standard output.

A thread of its own reads the history. Where lines cannot be written, that is one line in the log;
they are dropped and counted, and nobody waits.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Sequence
from errno import ELOOP
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ebpflb.log import fields
from ebpflb.observe.flows.flow_json import lost_line
from ebpflb.observe.flows.history import FlowHistory

_log = logging.getLogger("ebpflb.observe")

STDOUT = "-"
_STDOUT = 1
_LOOK_SECONDS = 1.0
_STOP_SECONDS = 2.0
_LONGEST_LINE = 65536
_OPENED = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW

Record = TypeVar("Record")


class Sink(Protocol):
    """Where lines go."""

    def write(self, lines: Sequence[bytes]) -> None:
        """Write all of them. OSError when some could not be written; none of these stays half."""
        ...


class StandardOutput:
    """The process's own; whoever reads it takes care of the size."""

    def __init__(self) -> None:
        # What is still to be written of a line that was begun.
        self._rest = b""

    def write(self, lines: Sequence[bytes]) -> None:
        """See Sink."""
        text = self._rest + b"".join(lines)
        done = 0
        try:
            while done < len(text):
                done += os.write(_STDOUT, memoryview(text)[done:])
        finally:
            if done:
                self._rest = text[done : text.index(b"\n", done - 1) + 1]


class RotatedFile:
    """FILE, and before it FILE.1, FILE.2 and so on, `files` in all, readable for root alone."""

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """A file larger than `max_bytes` has one line only."""
        self._path = path
        self._max_bytes = max_bytes
        self._files = files

    def write(self, lines: Sequence[bytes]) -> None:
        """See Sink. The file may have been moved or removed by others meanwhile."""
        rest = list(lines)
        while rest:
            rest = self._write_what_fits(rest)

    def _write_what_fits(self, lines: list[bytes]) -> list[bytes]:
        fd = self._open()
        try:
            size = _cut_half_line(fd)
            count = _fitting(lines, self._max_bytes - size)
            if not count and not size:
                count = 1
            _append(fd, size, b"".join(lines[:count]))
        finally:
            os.close(fd)
        if count < len(lines):
            self._rotate()
        return lines[count:]

    def _open(self) -> int:
        try:
            return os.open(self._path, _OPENED, 0o600)
        except OSError as error:
            if error.errno == ELOOP and self._path.is_symlink():
                raise OSError(
                    ELOOP, "the file is a symbolic link, which is not followed"
                ) from error
            raise

    def _rotate(self) -> None:
        names = [self._path, *(Path(f"{self._path}.{n}") for n in range(1, self._files))]
        names[-1].unlink(missing_ok=True)
        for older, newer in zip(names[:0:-1], names[-2::-1], strict=True):
            with contextlib.suppress(FileNotFoundError):
                newer.rename(older)


def _cut_half_line(fd: int) -> int:
    """Of an agent that was killed while it wrote; how large the file is then, in bytes."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _LONGEST_LINE, max(size - _LONGEST_LINE, 0))
    half = len(tail) - (tail.rfind(b"\n") + 1)
    if half:
        os.ftruncate(fd, size - half)
    return size - half


def _append(fd: int, size: int, text: bytes) -> None:
    """All of it, or the file is again as large as it was."""
    rest = memoryview(text)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError:
        os.ftruncate(fd, size)
        raise


def _fitting(lines: Sequence[bytes], room: int) -> int:
    """How many of the first lines have room."""
    for count, line in enumerate(lines):
        room -= len(line)
        if room < 0:
            return count
    return len(lines)


def sink_for(target: str, max_bytes: int, files: int) -> Sink:
    """A file, or standard output for "-"."""
    return StandardOutput() if target == STDOUT else RotatedFile(Path(target), max_bytes, files)


class FlowExport(Generic[Record]):
    """Writes every record that comes after `start()`."""

    def __init__(
        self,
        history: FlowHistory[Record],
        line: Callable[[int, Record], bytes],
        sink: Sink,
        target: str,
    ) -> None:
        """`line`: a record, by its number, as it is written. `target`: the sink's name."""
        self._history = history
        self._line = line
        self._sink = sink
        self._target = target
        # Records that could not be written, or were overwritten before.
        self.lost = 0
        self._failing = False
        self._next = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-export", daemon=True)

    def start(self) -> None:
        """Begin with what comes from now on."""
        self._next = self._history.end
        self._thread.start()

    def stop(self) -> None:
        """Write what is there and end; a disk that hangs is not waited for longer than 2 s."""
        self._stopped.set()
        # Wakes the thread.
        self._history.add(())
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.export(_LOOK_SECONDS)
        self.export(0)

    def export(self, wait: float) -> None:
        """Write what has come, or wait so many seconds for it."""
        batch = self._history.since(self._next, wait)
        self._next = batch.end
        self.lost += batch.lost
        lines = [self._line(at, each) for at, each in enumerate(batch.records, batch.first)]
        if batch.lost:
            lines.insert(0, lost_line(batch.lost))
        try:
            self._sink.write(lines)
        except OSError as error:
            self.lost += len(batch.records)
            self._note_failure(error)
        else:
            self._note_success(wrote=bool(lines))

    def _note_failure(self, error: OSError) -> None:
        if not self._failing:
            shown = fields(to=self._target)
            _log.error("flows cannot be exported: %s; trying again", error.strerror, extra=shown)
        self._failing = True

    def _note_success(self, *, wrote: bool) -> None:
        if self._failing and wrote:
            _log.info("flows are exported again", extra=fields(to=self._target, lost=self.lost))
            self._failing = False
