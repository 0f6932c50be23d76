# SPDX-License-Identifier: Apache-2.0
"""inotify: which manifests to read again, and when the path itself means something else."""

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from inotify_simple import Event, INotify, flags

_APPEARS = flags.CREATE | flags.MOVED_TO
_VANISHES = flags.DELETE | flags.MOVED_FROM
_ENTRIES = _APPEARS | _VANISHES | flags.ATTRIB | flags.DELETE_SELF | flags.MOVE_SELF
_CONTENT = _ENTRIES | flags.MODIFY | flags.CLOSE_WRITE
_LOST = flags.IGNORED | flags.UNMOUNT | flags.DELETE_SELF | flags.MOVE_SELF
_MOST_LINKS = 40
# Instead of a watch: a directory that may be passed through, but not read.
_BLIND = -1


def is_manifest(name: str) -> bool:
    """Whether a file of that name counts; hidden files and what editors leave behind do not."""
    return name.endswith((".yaml", ".yml", ".json")) and not name.startswith((".", "#"))


@dataclass(slots=True)
class Touched:
    """What read() found, as names of manifests.

    changed: to be read again. gone: renamed to something else. missing: deleted, or renamed to
    a backup of its own, which is also how editors and git begin to write a file anew; whether it
    is gone shows a moment later. anew: links or directories on the way changed, so follow() must
    be called again; the others hold nevertheless.
    """

    changed: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    missing: set[str] = field(default_factory=set)
    anew: bool = False


class _Entry(NamedTuple):
    """An entry of a watched directory."""

    watch: int
    name: str


class Watch:
    """Watches a directory of manifests, or one manifest, and all symbolic links on the way.

    Each directory that the path leads through is watched for the entry that matters, so a link
    that is swapped is noticed, and a directory that appears later. A file that is being written
    counts as changed once it is closed. path is absolute. is_file tells what follow() found last.
    Raises OSError if the user has no inotify instance left.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._inotify = INotify(nonblocking=True)
        self._directories: dict[int, str] = {}
        # Entries on the way, and entries that are the content of manifests, with their names.
        self._steps: set[_Entry] = set()
        self._contents: dict[_Entry, set[str]] = {}
        self._writing: set[_Entry] = set()
        # The watch of the directory of manifests; None while the path is no directory.
        self._home: int | None = None
        self.is_file = False

    def fileno(self) -> int:
        """The descriptor that becomes readable when read() has something to tell."""
        return int(self._inotify.fileno())

    def close(self) -> None:
        """Give the descriptor back."""
        self._inotify.close()

    def path_of(self, name: str) -> str:
        """The path of a manifest as the operator knows it."""
        return self._path if self.is_file else os.path.join(self._path, name)

    def follow(self) -> list[str]:
        """Watch where the path leads now; the names of the manifests there.

        Raises OSError; FileNotFoundError if there is nothing, and its appearing will be noticed.
        """
        self._forget()
        end = self._walk("/", self._path)
        name = os.path.basename(self._path)
        if end is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self._path)
        self._contents[end] = {name}
        place = self._watch_content(end)
        self.is_file = not stat.S_ISDIR(os.stat(place).st_mode)
        if self.is_file:
            return [name]
        del self._contents[end]
        return self._enter(place)

    def read(self) -> Touched:
        """What happened since the last call; does not wait."""
        touched = Touched()
        events = list(self._inotify.read(timeout=0))
        backups = {(event.cookie, event.name) for event in events if event.mask & flags.MOVED_TO}
        for event in events:
            if self._is_step(event):
                touched.anew = True
            set_aside = (event.cookie, f"{event.name}~") in backups
            for name in self._manifests_at(event):
                self._note(touched, event, name, set_aside)
        if self._home is None and (touched.changed or touched.gone):
            return Touched(missing=touched.missing, anew=True)
        return touched

    def _forget(self) -> None:
        for watch in self._directories:
            with suppress(OSError):
                self._inotify.rm_watch(watch)
        self._directories.clear()
        self._steps.clear()
        self._contents.clear()
        self._writing.clear()
        self._home = None

    def _walk(self, here: str, path: str) -> _Entry | None:
        """Watch each step of path, which starts at here. The last one, None if it is not there."""
        rest = _parts(path)
        links = 0
        while rest and links <= _MOST_LINKS:
            name = rest.pop()
            watch = self._watch(here, _ENTRIES)
            if watch is None:
                return None
            place = os.path.join(here, name)
            target = _link_target(place)
            if target is None and not rest:
                return _Entry(watch, name)
            self._steps.add(_Entry(watch, name))
            if target is None:
                here = place
            else:
                links += 1
                here = "/" if target.startswith("/") else here
                rest += _parts(target)
        return None

    def _watch(self, directory: str, mask: int) -> int | None:
        """Watch a directory, also for this; None if there is none."""
        try:
            watch = self._inotify.add_watch(directory, mask | flags.MASK_ADD | flags.ONLYDIR)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            if error.errno == errno.EACCES and mask == _ENTRIES:
                return _BLIND
            raise
        self._directories[watch] = directory
        return int(watch)

    def _enter(self, directory: str) -> list[str]:
        self._home = self._watch(directory, _CONTENT)
        names = []
        with os.scandir(directory) as entries:
            for entry in entries:
                if is_manifest(entry.name):
                    names.append(entry.name)
                    if entry.is_symlink():
                        self._follow_link(directory, entry.name)
        return names

    def _follow_link(self, directory: str, name: str) -> None:
        end = self._walk(directory, name)
        if end is not None:
            self._contents.setdefault(end, set()).add(name)
            with suppress(PermissionError):
                self._watch_content(end)

    def _watch_content(self, entry: _Entry) -> str:
        """Watch what is written there; its path."""
        directory = self._directories.get(entry.watch)
        if directory is None:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), self._path)
        self._watch(directory, _CONTENT)
        return os.path.join(directory, entry.name)

    def _is_step(self, event: Event) -> bool:
        if event.mask & flags.Q_OVERFLOW:
            return True
        if event.wd not in self._directories:
            return False
        return bool(event.mask & _LOST) or _Entry(event.wd, event.name) in self._steps

    def _manifests_at(self, event: Event) -> set[str]:
        """The manifests whose content is the entry that an event is about."""
        names = self._contents.get(_Entry(event.wd, event.name), set())
        if event.wd == self._home and is_manifest(event.name):
            return names | {event.name}
        return names

    def _note(self, touched: Touched, event: Event, name: str, set_aside: bool) -> None:
        entry = _Entry(event.wd, event.name)
        place = os.path.join(self._directories[event.wd], event.name)
        if event.mask & _APPEARS and (event.mask & flags.ISDIR or os.path.islink(place)):
            touched.anew = True
        elif event.mask & _VANISHES:
            self._writing.discard(entry)
            renamed = event.mask & flags.MOVED_FROM and not set_aside
            self._note_vanished(touched, name, touched.gone if renamed else touched.missing)
        elif event.mask & flags.MODIFY or (event.mask & flags.CREATE and not _is_hard_link(place)):
            self._writing.add(entry)
        elif not event.mask & flags.ATTRIB or entry not in self._writing:
            self._writing.discard(entry)
            touched.changed.add(name)

    def _note_vanished(self, touched: Touched, name: str, vanished: set[str]) -> None:
        """What exists again by now will be, or has been, told by an event of its own."""
        path = self.path_of(name)
        if not os.path.lexists(path):
            vanished.add(name)
        elif os.path.islink(path):
            touched.changed.add(name)


def _parts(path: str) -> list[str]:
    """The steps of a path, the first one last."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _link_target(path: str) -> str | None:
    try:
        return os.readlink(path)
    except OSError:
        return None


def _is_hard_link(path: str) -> bool:
    """Whether a file that has just appeared was complete from the start."""
    try:
        return os.lstat(path).st_nlink > 1
    except OSError:
        return False
