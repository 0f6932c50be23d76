# SPDX-License-Identifier: Apache-2.0
"""The flow records of the last hours, in files of limited size that outlive the agent.

Each write appends one gzip member with lines of JSON, so that what was written is whole whenever
the agent is killed. Files are named by the start of their run and counted from there; the oldest
are removed when all are too large together, or too old. What is not whole, or not ours, is skipped
with a line in the log.
"""

import gzip
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from re import compile as pattern
from typing import NamedTuple

from ebpflb import own_files
from ebpflb.config.moment import rfc3339_ns
from ebpflb.from_json import JsonError
from ebpflb.log import fields
from ebpflb.model.flow import Flow, LostFlows, read_flow, read_flow_time
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.kept_files import KEPT_SECONDS, append_lines

_log = logging.getLogger("ebpflb.observe")

_FILES = 32
_NAME = pattern(r"(\d{13})-(\d{6})\.jsonl\.gz")


class _File(NamedTuple):
    """run: when its agent started, in milliseconds since 1970."""

    run: int
    number: int

    @property
    def name(self) -> str:
        return f"{self.run:013}-{self.number:06}.jsonl.gz"


class KeptFlows:
    """A `Sink` for one thread; flows() is for any."""

    def __init__(
        self, directory: Path, max_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        """`max_bytes`: of all files together. `clock`: seconds since 1970."""
        self._directory = directory
        self._max_bytes = max_bytes
        self._clock = clock
        # The one that is written to, once something is.
        self._file: _File | None = None
        self._damaged: set[_File] = set()

    @property
    def damaged(self) -> int:
        """How many files were found that could not be read to their end."""
        return len(self._damaged)

    def write(self, lines: Sequence[bytes]) -> None:
        """OSError; what was there before stays readable."""
        if not lines:
            return
        own_files.make(self._directory.parent)
        own_files.make(self._directory)
        with own_files.opened(self._directory) as folder:
            self._file = current = self._file or self._first(folder)
            if append_lines(folder, current.name, lines) >= self._max_bytes // _FILES:
                self._file = current._replace(number=current.number + 1)
            self._remove_old(folder)

    def _first(self, folder: int) -> _File:
        """After all others, also if the clock was ahead when they were made."""
        newest = max((file.run for file in _files(folder)), default=-1)
        return _File(max(int(self._clock() * 1000), newest + 1), 0)

    def _remove_old(self, folder: int) -> None:
        names = [file.name for file in _files(folder)]
        found = [(name, os.stat(name, dir_fd=folder)) for name in names]
        left = sum(status.st_size for _, status in found)
        oldest = self._clock() - KEPT_SECONDS
        for name, status in found[:-1]:
            if left > self._max_bytes or status.st_mtime < oldest:
                os.unlink(name, dir_fd=folder)
                left -= status.st_size

    def flows(self, earliest: str, before: int, latest: str = "") -> Iterator[Flow]:
        """Those not before `earliest`, a time as in Flow, in the order in which they were written.

        `before`: of this run, only records with a lower number. `latest`: not after; "" for any.
        """
        found = self.records(earliest, before, latest)
        return (each for each in found if isinstance(each, Flow))

    def records(self, earliest: str, before: int, latest: str = "") -> Iterator[Flow | LostFlows]:
        """As flows(), and what is missing in between, as far as its time was noted."""
        try:
            with own_files.opened(self._directory) as folder:
                for file in _files(folder):
                    if _written(folder, file) < earliest:
                        continue
                    is_own = self._file is not None and file.run == self._file.run
                    for each in self._read(folder, file, earliest, latest):
                        if not (is_own and isinstance(each, Flow) and each.seq >= before):
                            yield each
        except FileNotFoundError:
            return
        except OSError as error:
            self._skip("", str(error))

    def _read(
        self, folder: int, file: _File, earliest: str, latest: str
    ) -> Iterator[Flow | LostFlows]:
        try:
            with own_files.reading(folder, file.name) as packed, gzip.open(packed) as lines:
                for line in lines:
                    found = read_flow_time(line)
                    is_early = not latest or (found.since or found.time) <= latest
                    if is_early and found.time >= earliest:
                        yield read_flow(line)
        except FileNotFoundError:
            # Too old by now.
            return
        except (EOFError, zlib.error, JsonError, OSError) as error:
            # The last record of the file that is written to may be half there.
            if file != self._file:
                self._damaged.add(file)
            self._skip(file.name, str(error))

    def _skip(self, name: str, why: str) -> None:
        path = str(self._directory / name)
        _log.warning(
            "a file of kept flows is not read to its end: %s", why, extra=fields(path=path)
        )


def recorded(
    log: FlowLog, kept: KeptFlows | None, earliest: str, latest: str
) -> Iterator[Flow | LostFlows]:
    """Of a time, as times of Flow: those that are kept, and then those in memory."""
    batch = log.history.since(0)
    recent = (log.flow(at, each) for at, each in enumerate(batch.records, batch.first))
    older = kept.records(earliest, batch.first, latest) if kept else ()
    return chain(older, (each for each in recent if earliest <= each.time <= latest))


def _written(folder: int, file: _File) -> str:
    """When it was written last, as the time of a Flow; empty if it is gone."""
    with suppress(FileNotFoundError):
        return rfc3339_ns(os.stat(file.name, dir_fd=folder).st_mtime_ns)
    return ""


def _files(folder: int) -> list[_File]:
    """Oldest first."""
    found = []
    with suppress(FileNotFoundError):
        found = [
            _File(int(each[1]), int(each[2]))
            for each in map(_NAME.fullmatch, os.listdir(folder))
            if each
        ]
    return sorted(found)
