# SPDX-License-Identifier: Apache-2.0
"""What was served in the last hours, in files of limited size that outlive the agent.

A file begins with all that was in force at its time, and goes on with the changes, each write as a
gzip member: what was served at any moment is in the last file that begins before it, up to that
moment. A file is there once its first part is whole. The oldest are removed when all are too large
together, or when nothing of the last day is in them; and if the clock was ahead, those that began
later than it is.
"""

import errno
import gzip
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, pairwise
from pathlib import Path
from re import compile as pattern
from typing import NamedTuple

from ebpflb import own_files
from ebpflb.config.moment import rfc3339_ns
from ebpflb.config.settings import Settings
from ebpflb.errors import QueryError
from ebpflb.observe.kept_files import KEPT_SECONDS, LEVEL, append_lines
from ebpflb.observe.served.records import ServedRecord, line_of_end, read_record

_NAME = pattern(r"(\d{19})\.jsonl\.gz")
_BUILDING = "new"
# Another file is begun after so much of a day, or of all files' size, unless its first part is
# larger: then after as much again.
_PART_OF_DAY = 3
_PART_OF_ROOM = 8
_BATCH = 100
_DAY = int(KEPT_SECONDS * 1_000_000_000)


class _Current(NamedTuple):
    """The file that is written to. first_part: in bytes.

    begin, written: nanoseconds since 1970; the last time it was.
    """

    begin: int
    first_part: int
    size: int
    written: int


def kept_changes(settings: Settings) -> "KeptChanges | None":
    """In one half of the room that there is for the history; None if nothing is to be kept."""
    if not settings.flow_history_bytes:
        return None
    directory = settings.flow_history_directory / "served"
    return KeptChanges(directory, settings.flow_history_bytes // 2)


class KeptChanges:
    """begin() and add() are for one thread, records() is for any."""

    def __init__(
        self, directory: Path, max_bytes: int, clock: Callable[[], int] = time.time_ns
    ) -> None:
        """`max_bytes`: of all files together. `clock`: nanoseconds since 1970."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._clock = clock
        self._current: _Current | None = None

    @property
    def needs_begin(self) -> bool:
        """Whether another file is due, with all that is in force."""
        current = self._current
        if current is None:
            return True
        room = max(current.first_part, self._max_bytes // _PART_OF_ROOM)
        now = self._clock()
        is_old = now - current.begin > _DAY // _PART_OF_DAY
        return current.size - current.first_part > room or is_old or now < current.written

    def begin(
        self, lines: Callable[[str], Iterable[bytes]], pause: Callable[[], None], moment: int
    ) -> None:
        """Begin another file. OSError; then nothing is written until the next one.

        `lines`: all that is in force, of a time. `pause` is called between parts of the work.
        `moment`: since when that is in force, in nanoseconds since 1970.
        """
        self._current = None
        for directory in (self._directory.parent.parent, self._directory.parent, self._directory):
            own_files.make(directory)
        with own_files.opened(self._directory) as folder:
            earlier = [each for each in _begins(folder) if each <= self._clock()]
            begin = max(moment, max(earlier, default=-1) + 1)
            name = _name(begin)
            with own_files.replacing(folder, name, _BUILDING) as file:
                with gzip.GzipFile(fileobj=file, mode="wb", compresslevel=LEVEL) as packed:
                    now = rfc3339_ns(begin)
                    for index, line in enumerate(chain(lines(now), [line_of_end(now)]), 1):
                        packed.write(line)
                        if index % _BATCH == 0:
                            pause()
                file.flush()
                os.fsync(file.fileno())
                size = file.tell()
                self._check_size(size)
            self._current = _Current(begin, size, size, self._clock())
            self._remove_later(folder, begin)
            self._remove_old(folder)

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            text = f"it takes {size} bytes, and there is room for {self._max_bytes}"
            raise OSError(errno.EFBIG, f"{text}: raise --flow-history-bytes")

    def add(self, lines: Sequence[bytes]) -> None:
        """Changes, oldest first. OSError; then nothing is written until another file begins."""
        current, self._current = self._current, None
        if current is None:
            return
        with own_files.opened(self._directory) as folder:
            size = append_lines(folder, _name(current.begin), lines)
            self._current = current._replace(size=size, written=self._clock())
            self._remove_old(folder)

    def _remove_later(self, folder: int, begin: int) -> None:
        for each in _begins(folder):
            if each > begin:
                os.unlink(_name(each), dir_fd=folder)

    def _remove_old(self, folder: int) -> None:
        begins = _begins(folder)
        sizes = {each: os.stat(_name(each), dir_fd=folder).st_size for each in begins}
        left, oldest = sum(sizes.values()), self._clock() - _DAY
        for begin, following in pairwise(begins):
            if left > self._max_bytes or following < oldest:
                os.unlink(_name(begin), dir_fd=folder)
                left -= sizes[begin]

    def records(self, moment: int, mentions: Callable[[bytes], bool]) -> Iterator[ServedRecord]:
        """Those that say what was in force at a moment, oldest first. QueryError.

        `moment`: nanoseconds since 1970. `mentions`: whether a line matters.
        """
        latest = rfc3339_ns(moment)
        try:
            with own_files.opened(self._directory) as folder:
                begins = _begins(folder)
                before = [each for each in begins if each <= moment]
                if not before:
                    raise QueryError(_nothing_before(begins))
                following = begins[len(before) :]
                if following:
                    _check_loss(self._lines(folder, following[0]), latest)
                yield from self._until(latest, folder, before[-1], mentions)
        except FileNotFoundError as error:
            raise QueryError("what was served then is not kept any more") from error
        except (OSError, zlib.error, ValueError) as error:
            text = f"{self._directory}: what was served then cannot be read: {error}"
            raise QueryError(text) from error

    def _until(
        self, latest: str, folder: int, begin: int, mentions: Callable[[bytes], bool]
    ) -> Iterator[ServedRecord]:
        end, is_whole = line_of_end(rfc3339_ns(begin)), False
        for line in self._lines(folder, begin):
            is_whole = is_whole or line == end
            if line != end and mentions(line):
                record = read_record(line)
                if record.time > latest:
                    break
                yield record
        if not is_whole:
            raise ValueError(f"{_name(begin)} is damaged")

    def _lines(self, folder: int, begin: int) -> Iterator[bytes]:
        """Without the last ones of an agent that was killed while it wrote them."""
        with (
            own_files.reading(folder, _name(begin)) as packed,
            gzip.open(packed) as lines,
            suppress(EOFError),
        ):
            yield from lines


def _check_loss(lines: Iterator[bytes], latest: str) -> None:
    """`lines`: of the file that follows."""
    first = read_record(next(lines, b""))
    if first.lost_since and latest >= first.lost_since:
        raise QueryError(f"what was served since {first.lost_since} could not be kept")


def _nothing_before(begins: Sequence[int]) -> str:
    since = f"since {rfc3339_ns(begins[0])}" if begins else "by this node yet"
    return f"nothing is kept of what was served then: it is kept {since}"


def _name(begin: int) -> str:
    return f"{begin:019}.jsonl.gz"


def _begins(folder: int) -> list[int]:
    """Oldest first."""
    with suppress(FileNotFoundError):
        return sorted(int(each[1]) for each in map(_NAME.fullmatch, os.listdir(folder)) if each)
    return []
