# SPDX-License-Identifier: Apache-2.0
"""inotify as a wake-up: which manifests to read again, and when to compare all of them.

Watches the directory of the manifests and the directories on the path to it, but not the targets of
symbolic links elsewhere: for those, call has_moved() and compare `links` every COMPARE_SECONDS.
"""

import errno
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass, field
from stat import S_ISDIR
from typing import NamedTuple

from inotify_simple import Event, INotify, flags

COMPARE_SECONDS = 5.0
_SETTLED_SECONDS = 1.0
_APPEARS = flags.CREATE | flags.MOVED_TO
_VANISHES = flags.DELETE | flags.MOVED_FROM
_ENTRIES = _APPEARS | _VANISHES | flags.ATTRIB | flags.DELETE_SELF | flags.MOVE_SELF
_CONTENT = _ENTRIES | flags.MODIFY | flags.CLOSE_WRITE
_LOST = flags.IGNORED | flags.UNMOUNT | flags.DELETE_SELF | flags.MOVE_SELF
# The directory is missing, or may be traversed but not read: nothing to watch.
_UNWATCHABLE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)


def is_manifest(name: str) -> bool:
    """False for hidden files and editors' leftovers, too."""
    return name.endswith((".yaml", ".yml", ".json")) and not name.startswith((".", "#"))


@dataclass(slots=True)
class Touched:
    """The result of read(), as names of manifests.

    changed: to be read again. gone: renamed to something else. missing: deleted, or renamed to
    its own backup; editors and git also start replacing a file that way, so wait a moment to see
    whether it is gone. compare_all: a link, or a directory on the path, has changed: call follow()
    again and compare all files.
    """

    changed: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    compare_all: bool = False


class _Entry(NamedTuple):
    """An entry of a watched directory."""

    watch: int | None
    name: str


class Watch:
    """Watches a directory of manifests, or one file of any name.

    A file being written counts as changed once it is closed. path is absolute. is_file and links
    (the manifests that are symbolic links): as of the last follow(). Raises OSError if the user has
    no inotify instance left.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._inotify = INotify(nonblocking=True)
        self._watches: set[int] = set()
        # The entries in other directories that the path goes through.
        self._steps: frozenset[_Entry] = frozenset()
        # The directory of the manifests, or of the one file, even if it is missing.
        self._directory = path
        self._home: int | None = None
        self._is_single = False
        self._location: tuple[object, ...] = ()
        self._writing: set[str] = set()
        self.is_file = False
        self.links: list[str] = []

    def fileno(self) -> int:
        """The descriptor that becomes readable when read() has something to return."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        self._inotify.close()

    def path_of(self, name: str) -> str:
        """The path of a manifest as the operator wrote it."""
        return self._path if self.is_file else os.path.join(self._path, name)

    def may_read(self, name: str, *, only_settled: bool = False) -> bool:
        """False while the file, or an adjacent file that it links to, is being written.

        only_settled: also False for a second after a write, for files whose closing inotify does
        not see.
        """
        if not (self._writing or only_settled):
            return True
        path = os.path.realpath(self._at(name))
        if os.path.basename(path) in self._writing:
            return False
        return not only_settled or _seconds_since_write(path) > _SETTLED_SECONDS

    def follow(self) -> list[str]:
        """Watch the path's current target; returns the names of the manifests there.

        Raises OSError; FileNotFoundError if there is nothing yet; read() reports when it appears.
        """
        before, self._watches = self._watches, set()
        steps, here = [], "/"
        for name in filter(None, self._path.split("/")):
            steps.append(_Entry(self._watch(here, _ENTRIES), name))
            here = os.path.join(here, name)
        self._is_single = not os.path.isdir(self._path)
        self._steps = frozenset(steps[:-1] if self._is_single else steps)
        self._directory = os.path.dirname(self._path) if self._is_single else self._path
        home = self._watch(self._directory, _CONTENT)
        if home != self._home:
            self._home = home
            self._writing.clear()
        for watch in before - self._watches:
            with suppress(OSError):
                self._inotify.rm_watch(watch)
        self._location = self._location_now()
        if S_ISDIR(os.stat(self._path).st_mode) is self._is_single:
            # It has appeared, or become another, meanwhile.
            return self.follow()
        self.is_file = self._is_single
        return self._names()

    def has_moved(self) -> bool:
        """Whether the path's target has changed since follow(), which must then be repeated."""
        return self._location_now() != self._location

    def read(self) -> Touched:
        """What happened since the last call; does not block."""
        touched = Touched()
        events = list(self._inotify.read(timeout=0))
        backups = {(event.cookie, event.name) for event in events if event.mask & flags.MOVED_TO}
        for event in events:
            if event.mask & flags.Q_OVERFLOW:
                self._writing.clear()
            if self._is_step(event):
                touched.compare_all = True
            if event.wd == self._home:
                self._note(touched, event, (event.cookie, f"{event.name}~") in backups)
        if self._is_single and (touched.changed or touched.gone):
            return Touched(missing=touched.missing, compare_all=True)
        return touched

    def _at(self, name: str) -> str:
        return os.path.join(self._directory, name)

    def _watch(self, directory: str, mask: int) -> int | None:
        """Watch a directory for these events, too; None if that is not possible."""
        try:
            watch = int(self._inotify.add_watch(directory, mask | flags.MASK_ADD | flags.ONLYDIR))
        except OSError as error:
            if error.errno in _UNWATCHABLE:
                return None
            raise
        self._watches.add(watch)
        return watch

    def _location_now(self) -> tuple[object, ...]:
        """Changes with the directory of the manifests, and with the type of the path."""
        is_directory = os.path.isdir(self._path)
        try:
            status = os.stat(self._path if is_directory else os.path.dirname(self._path))
        except OSError:
            return ()
        return (is_directory, os.path.exists(self._path), status.st_dev, status.st_ino)

    def _names(self) -> list[str]:
        if self.is_file:
            name = os.path.basename(self._path)
            self.links = [name] if os.path.islink(self._path) else []
            return [name]
        with os.scandir(self._directory) as entries:
            found = [entry for entry in entries if is_manifest(entry.name)]
        self.links = [entry.name for entry in found if entry.is_symlink()]
        return [entry.name for entry in found]

    def _is_step(self, event: Event) -> bool:
        if event.mask & flags.Q_OVERFLOW:
            return True
        is_lost = bool(event.mask & _LOST) and event.wd in self._watches
        return is_lost or _Entry(event.wd, event.name) in self._steps

    def _note(self, touched: Touched, event: Event, set_aside: bool) -> None:
        if event.mask & flags.MODIFY:
            self._writing.add(event.name)
        elif event.mask & (flags.CLOSE_WRITE | flags.MOVED_TO | _VANISHES):
            self._writing.discard(event.name)
        # It may be the target of a link, like ..data in a mounted ConfigMap.
        if self.links and event.mask & (_APPEARS | _VANISHES | flags.CLOSE_WRITE):
            touched.compare_all = True
        if self._at(event.name) == self._path if self._is_single else is_manifest(event.name):
            self._note_manifest(touched, event, set_aside)

    def _note_manifest(self, touched: Touched, event: Event, set_aside: bool) -> None:
        name, path = event.name, self._at(event.name)
        if event.mask & _APPEARS and (event.mask & flags.ISDIR or os.path.islink(path)):
            touched.compare_all = True
        elif event.mask & _VANISHES:
            renamed = event.mask & flags.MOVED_FROM and not set_aside
            self._note_vanished(touched, name, touched.gone if renamed else touched.missing)
        elif event.mask & flags.CREATE and not _is_hard_link(path):
            self._writing.add(name)
        elif name not in self._writing:
            touched.changed.add(name)

    def _note_vanished(self, touched: Touched, name: str, vanished: set[str]) -> None:
        """A file that exists again by now has, or will have, its own event."""
        path = self._at(name)
        if not os.path.lexists(path):
            vanished.add(name)
        elif os.path.islink(path):
            touched.changed.add(name)


def _seconds_since_write(path: str) -> float:
    """Absolute, because clocks may be set back; infinite if there is no file."""
    try:
        return abs(time.time() - os.stat(path).st_mtime)
    except OSError:
        return math.inf


def _is_hard_link(path: str) -> bool:
    """Whether a file that has just appeared was complete from the start."""
    try:
        return os.lstat(path).st_nlink > 1
    except OSError:
        return False
