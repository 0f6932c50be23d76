# SPDX-License-Identifier: Apache-2.0
"""The source that reads manifests from a directory or a file, and follows their changes."""

import errno
import logging
import os
import select
import stat
import threading
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from pathlib import Path
from struct import Struct

from ebpflb.errors import SourceError
from ebpflb.model.objects.kinds import ObjectKey
from ebpflb.source.interface import SourceEvent
from ebpflb.source.manifest import Inventory, parse_manifest
from ebpflb.source.watch import COMPARE_SECONDS, Watch

_log = logging.getLogger("ebpflb.source")
# Seconds, longer than an editor or git takes between deleting a file and recreating it.
_PAUSE = 0.05

_SIGNATURE = Struct("=4Q")


class DirectorySource:
    """Reads *.yaml, *.yml and *.json in a directory (not its subdirectories), or one file.

    Calls emit() from its own thread: once at the start, even if there are no objects, then for
    every change. While the path does not exist, its objects stay as they were. A file that is
    deleted and quickly recreated does not count as deleted. If several files have the same object,
    the last one in the order of file names wins.
    """

    def __init__(
        self,
        path: Path,
        emit: Callable[[SourceEvent], None],
        label_keys: Collection[str] = (),
    ) -> None:
        """`label_keys`: see decode()."""
        self._label_keys = label_keys
        self._path = str(path.absolute())
        self._emit = emit
        self._inventory = Inventory()
        self._signatures: dict[str, bytes] = {}
        # File name -> its path and the error; "" stands for the path as a whole.
        self._errors: dict[str, tuple[str, str]] = {}
        self._sent_errors: dict[str | ObjectKey, str] = {}
        self._logged: set[str] = set()
        # Deleted files, and when they will count as gone.
        self._missing: dict[str, float] = {}
        # When to check for changes that inotify does not report.
        self._next_look = 0.0
        self._stop: int | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start reading and watching. Raises SourceError if the machine cannot watch files."""
        try:
            watch = Watch(self._path)
        except OSError as error:
            advice = "raise the sysctl fs.inotify.max_user_instances"
            raise SourceError(f"{self._path}: no inotify: {error.strerror}; {advice}") from error
        self._stop = os.eventfd(0)
        self._thread = threading.Thread(
            target=self._run, args=(watch, self._stop), name="ebpflb-source", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread and wait for it; emit() is not called after that."""
        if self._thread is None or self._stop is None:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        os.close(self._stop)
        self._thread = self._stop = None

    def _run(self, watch: Watch, stop: int) -> None:
        poller = select.poll()
        poller.register(stop, select.POLLIN)
        poller.register(watch.fileno(), select.POLLIN)
        with closing(watch):
            self._compare_all(watch)
            self._send(initial=True)
            while stop not in dict(poller.poll(self._wait_milliseconds())):
                self._read_touched(watch)
                self._send(initial=False)

    def _wait_milliseconds(self) -> float:
        deadline = min([self._next_look, *self._missing.values()])
        return max(0.0, deadline - time.monotonic()) * 1000

    def _read_touched(self, watch: Watch) -> None:
        now = time.monotonic()
        is_due = now >= self._next_look
        # Before the events: files deleted before the path moved must count as deleted.
        has_moved = is_due and watch.has_moved()
        touched = watch.read()
        for name in touched.missing:
            self._missing[name] = now + _PAUSE
        for name in sorted(touched.gone):
            self._drop(name)
        for name in sorted(touched.changed - touched.gone):
            self._read(name, watch.path_of(name))
        if touched.compare_all or has_moved or (is_due and "" in self._errors):
            self._compare_all(watch)
        elif is_due:
            self._next_look = now + COMPARE_SECONDS
            unread = [name for name, seen in self._signatures.items() if not seen]
            self._compare(watch, {*watch.links, *unread}, only_settled=True)
        self._drop_missing(watch, now)

    def _drop_missing(self, watch: Watch, now: float) -> None:
        for name in [name for name, deadline in self._missing.items() if deadline <= now]:
            del self._missing[name]
            if os.path.lexists(watch.path_of(name)):
                continue
            if watch.is_file:
                self._compare_all(watch)
            else:
                self._drop(name)

    def _compare_all(self, watch: Watch) -> None:
        """Follow the path again; read the files that may have changed."""
        self._next_look = time.monotonic() + COMPARE_SECONDS
        try:
            names = watch.follow()
        except OSError as error:
            line = f"{self._path}: {error.strerror}; its last readable content stays in force"
            self._errors[""] = (self._path, line)
            return
        self._errors.pop("", None)
        for name in self._signatures.keys() - set(names) - self._missing.keys():
            self._drop(name)
        self._compare(watch, names)

    def _compare(self, watch: Watch, names: Iterable[str], *, only_settled: bool = False) -> None:
        for name in sorted(names):
            path = watch.path_of(name)
            if name in self._signatures and _signature_at(path) == self._signatures[name]:
                continue
            if watch.may_read(name, only_settled=only_settled):
                self._read(name, path)

    def _drop(self, name: str) -> None:
        self._signatures.pop(name, None)
        self._errors.pop(name, None)
        self._inventory.put(name, {})

    def _read(self, name: str, path: str) -> None:
        try:
            self._signatures[name], raw = _content(path)
            content = parse_manifest(name, raw, self._label_keys)
        except SourceError as error:
            self._errors[name] = (path, f"{path}: {error}")
        except OSError as error:
            # A file that has vanished since then has an event of its own.
            if os.path.lexists(path):
                self._signatures[name] = b""
                self._errors[name] = (path, f"{path}: cannot be read: {error.strerror}")
        else:
            self._errors.pop(name, None)
            self._log_once(logging.INFO, content.remarks)
            self._log_once(logging.WARNING, self._inventory.put(name, content.objects))

    def _log_once(self, level: int, remarks: Iterable[str]) -> None:
        for remark in remarks:
            if remark not in self._logged:
                self._logged.add(remark)
                _log.log(level, remark)

    def _send(self, initial: bool) -> None:
        errors: dict[str | ObjectKey, str] = dict(self._errors.values())
        upserts, removals = self._inventory.take()
        if initial or upserts or removals or errors != self._sent_errors:
            self._sent_errors = errors
            self._emit(SourceEvent(upserts, removals, errors, initial, complete=not errors))


def _content(path: str) -> tuple[bytes, bytes]:
    with open(path, "rb", buffering=0, opener=_open_without_waiting) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return _signature(status), file.read()


def _open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _signature_at(path: str) -> bytes:
    try:
        return _signature(os.stat(path))
    except OSError:
        return b""


def _signature(status: os.stat_result) -> bytes:
    """Differs if the content does, except for two writes of equal size within a clock tick."""
    return _SIGNATURE.pack(status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns)
