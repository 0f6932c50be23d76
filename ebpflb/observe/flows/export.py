# SPDX-License-Identifier: Apache-2.0
"""Writes flows as JSON lines to standard output, or to a file that is rotated by size.

A separate thread reads the history. Lines that cannot be written are dropped, counted and reported
once in the log; nothing waits for them.
"""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from errno import ELOOP
from itertools import accumulate
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from ebpflb import own_files
from ebpflb.config.moment import rfc3339_ns
from ebpflb.log import fields
from ebpflb.model.flow import LostFlows, flow_line
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
        """Write all lines. OSError if some could not be written; never leaves a partial line."""
        ...


class StandardOutput:
    """The process's standard output; its reader limits the size."""

    def __init__(self) -> None:
        # The rest of a partially written line.
        self._rest = b""

    def write(self, lines: Sequence[bytes]) -> None:
        text = self._rest + b"".join(lines)
        done = 0
        try:
            while done < len(text):
                done += os.write(_STDOUT, memoryview(text)[done:])
        finally:
            if done:
                self._rest = text[done : text.index(b"\n", done - 1) + 1]


class RotatedFile:
    """FILE and the older FILE.1, FILE.2 and so on: `files` in total, readable only by root.

    A file exceeds `max_bytes` only if it is a single line.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._files = files

    def write(self, lines: Sequence[bytes]) -> None:
        """Reopen the file each time: others may have moved or removed it."""
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
            own_files.append(fd, size, b"".join(lines[:count]))
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
    """Remove the partial line of an agent killed while writing; returns the file's size."""
    size = os.fstat(fd).st_size
    tail = os.pread(fd, _LONGEST_LINE, max(size - _LONGEST_LINE, 0))
    half = len(tail) - (tail.rfind(b"\n") + 1)
    if half:
        os.ftruncate(fd, size - half)
    return size - half


def _fitting(lines: Sequence[bytes], room: int) -> int:
    """How many of the first lines fit."""
    return sum(total <= room for total in accumulate(map(len, lines)))


def sink_for(target: str, max_bytes: int, files: int) -> Sink:
    """A file, or standard output for "-"."""
    return StandardOutput() if target == STDOUT else RotatedFile(Path(target), max_bytes, files)


class FlowExport(Generic[Record]):
    """Writes every record that is logged after `start()`."""

    def __init__(
        self,
        history: FlowHistory[Record],
        line: Callable[[int, Record], bytes],
        sink: Sink,
        target: str,
        lost_before: Callable[[], int] = lambda: 0,
    ) -> None:
        """`line`: formats a record with its number. `target`: the sink's name in the log.

        `lost_before`: how many records have not reached the history since the last call.
        """
        self._history = history
        self._line = line
        self._sink = sink
        self._target = target
        self._lost_before = lost_before
        # Records that could not be written, or were overwritten in the history first.
        self.lost = 0
        # Those that are missing in what was written, and from when on.
        self._missing, self._since = 0, time.time_ns()
        self._failing = False
        self._next = 0
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-export", daemon=True)

    def start(self) -> None:
        """Start with the next record; older ones are not exported."""
        self._next = self._history.end
        self._thread.start()

    def stop(self) -> None:
        """Write what is pending and stop; waits at most 2 seconds for a hanging disk."""
        self._stopped.set()
        # Wake the thread.
        self._history.add(())
        self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.export(_LOOK_SECONDS)
        self.export(0)

    def export(self, wait: float) -> None:
        """Write the new records; waits up to `wait` seconds for one."""
        batch = self._history.since(self._next, wait)
        self._next = batch.end
        self.lost += batch.lost
        self._missing += batch.lost + self._lost_before()
        now = time.time_ns()
        lines = [self._line(at, each) for at, each in enumerate(batch.records, batch.first)]
        if self._missing:
            since, until = rfc3339_ns(self._since), rfc3339_ns(now)
            lines.insert(0, flow_line(LostFlows(lost=self._missing, since=since, time=until)))
        try:
            self._sink.write(lines)
        except OSError as error:
            self.lost += len(batch.records)
            self._missing += len(batch.records)
            if not self._failing:
                text, shown = error.strerror, fields(to=self._target)
                _log.error("cannot export flow records: %s; retrying", text, extra=shown)
            self._failing = True
            return
        self._missing, self._since = 0, now
        if self._failing and lines:
            self._failing = False
            _log.info("exporting flow records again", extra=fields(to=self._target, lost=self.lost))
