# SPDX-License-Identifier: Apache-2.0
"""The directories on bpffs, and the lock for writing there.

    <root>/<layout>-<number>/maps/NAME    one generation: the maps and the programs that use them
    <root>/<layout>-<number>/progs/NAME
    <root>/<layout>-<number>/complete     an empty directory: everything is there
    <root>/links/NAME                     the attached hooks, whatever generation they run

A new layout, other C programs or larger maps require a new generation next to the old one; the
links are then moved to it one by one. Numbers increase and are never reused, in any layout. A
generation without `complete` was left by an interrupted start; its time is that of the last sync.

The separator is not a dot: bpffs reserves names with dots (EPERM).
"""

import contextlib
import fcntl
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from ebpflb.dataplane.kernel import libbpf, libc
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
from ebpflb.errors import PinError

BPFFS = Path("/sys/fs/bpf")
LINKS = "links"

_GENERATION = re.compile(r"([0-9]+)-([0-9]+)")
_MOUNT_SOURCE = "ebpflb"

_EPOCHS, _SERIALS_PER_EPOCH = 1 << 15, 1 << 16


class Generation(NamedTuple):
    """A set of maps and programs that belong together."""

    number: int
    layout: int
    directory: Path

    @property
    def epoch(self) -> int:
        """First serial of backends: those in flows of older maps must not be reused."""
        return self.number % _EPOCHS * _SERIALS_PER_EPOCH

    @property
    def maps(self) -> Path:
        """Where its maps are pinned."""
        return self.directory / "maps"

    @property
    def progs(self) -> Path:
        """Where its programs are pinned."""
        return self.directory / "progs"

    @property
    def complete(self) -> Path:
        """A directory that is there once everything else is."""
        return self.directory / "complete"

    @property
    def last_sync(self) -> float | None:
        """When its maps last had all that was wanted, in seconds since 1970; None if never."""
        try:
            return self.complete.stat().st_mtime
        except OSError:
            return None

    def note_sync(self, when: float) -> None:
        """Keep `last_sync` for those who look while no agent runs. Pins may have been removed."""
        with suppress(OSError):
            os.utime(self.complete, (when, when))

    @property
    def is_complete(self) -> bool:
        """False for the remains of an interrupted start."""
        return self.complete.is_dir()


class Pins:
    """The pins of one node, locked from construction to `close()`: nobody else may write them.

    Construction makes sure that there is a bpffs: if `root` is not on one, it is mounted at
    /sys/fs/bpf if `root` is below that, else at `root` itself. A bpffs mounted inside a container
    disappears with the container unless the mount propagates to the host.
    Every method raises PinError; its text says which path, why, and what to do.
    """

    def __init__(self, root: Path) -> None:
        """Mount, create the directories and lock them."""
        self.root = root
        self.links = root / LINKS
        with _explained(root):
            _ensure_bpffs(root)
            self.links.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(root)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the lock; further calls do nothing. The pins stay."""
        if self._lock >= 0:
            os.close(self._lock)
        self._lock = -1

    def current(self) -> Generation | None:
        """The newest complete generation, which may be of an older layout; None on a fresh node.

        Refuses pins whose layout is newer than this program's.
        """
        generation = newest_generation(self.root)
        if generation and generation.layout > LAYOUT_VERSION:
            raise PinError(
                f"{generation.directory}: made by a newer version (map layout {generation.layout}, "
                f"this one knows {LAYOUT_VERSION}): run the newer version, or `ebpflb cleanup` "
                "first, which drops all flows"
            )
        return generation

    def create(self) -> Generation:
        """Directories for a new generation, which does not become current before `commit()`."""
        number = 1 + max((found.number for found in generations(self.root)), default=0)
        directory = self.root / f"{LAYOUT_VERSION}-{number}"
        generation = Generation(number, LAYOUT_VERSION, directory)
        with _explained(directory):
            generation.maps.mkdir(parents=True)
            generation.progs.mkdir()
        return generation

    def commit(self, generation: Generation) -> None:
        """From now on a restart uses this generation."""
        with _explained(generation.directory):
            generation.complete.mkdir(exist_ok=True)

    def are_intact(self, objects: Iterable[Path]) -> bool:
        """Whether the directory is the locked one, and something is pinned at each of these."""
        return self._is_locked() and all(path.exists() for path in objects)

    def restore(self, objects: Mapping[Path, int]) -> None:
        """Pin these descriptors again where nothing is, on a new bpffs if there is none."""
        with _explained(self.root):
            _ensure_bpffs(self.root)
            self.links.mkdir(parents=True, exist_ok=True)
            if not self._is_locked():
                self.close()
                self._lock = _lock(self.root)
            for path, descriptor in objects.items():
                path.parent.mkdir(parents=True, exist_ok=True)
                if not path.exists():
                    libbpf.obj_pin(descriptor, path)

    def _is_locked(self) -> bool:
        """False if the directory was removed, or its file system unmounted."""
        return self.root.exists() and os.path.samestat(os.stat(self.root), os.fstat(self._lock))

    def remove_others(self, keep: Generation) -> None:
        """Remove every other generation, complete or not. Attached programs keep running."""
        for generation in generations(self.root):
            if generation.directory != keep.directory:
                self.remove(generation)

    def remove_unfinished(self, keep: Generation) -> None:
        """Remove the remains of interrupted starts, but not `keep`."""
        for generation in generations(self.root):
            if not generation.is_complete and generation.directory != keep.directory:
                self.remove(generation)

    def remove(self, generation: Generation) -> None:
        """Remove one generation. Attached programs keep running."""
        with _explained(generation.directory):
            _remove_generation(generation)

    def remove_all(self) -> None:
        """Remove the links and the generations of all layouts, then `root`, and the lock.

        A link is detached when its pin is removed. Files of others stay, and so does `root` then. A
        bpffs that this program mounted at `root` is unmounted.
        """
        with _explained(self.root):
            shutil.rmtree(self.links)
            for generation in generations(self.root):
                _remove_generation(generation)
            self.close()
            _remove_root(self.root)


def newest_generation(root: Path) -> Generation | None:
    """The newest complete generation of any layout, without locking, for readers."""
    complete = [generation for generation in generations(root) if generation.is_complete]
    return max(complete, default=None)


def generations(root: Path) -> Iterator[Generation]:
    """Every generation below `root`, complete or not, of any layout."""
    with _explained(root):
        names = sorted(os.listdir(root)) if root.is_dir() else []
    for name in names:
        match = _GENERATION.fullmatch(name)
        if match and (root / name).is_dir():
            layout, number = map(int, match.groups())
            yield Generation(number, layout, root / name)


def remove_pin(path: Path) -> None:
    """Remove a pin, or the directory that somebody has made in its place. OSError."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_generation(generation: Generation) -> None:
    remove_pin(generation.complete)
    shutil.rmtree(generation.directory)


def _remove_root(root: Path) -> None:
    if _is_own_mount(root):
        libc.unmount(root)
    if not root.is_mount() and not any(root.iterdir()):
        root.rmdir()


def _is_own_mount(root: Path) -> bool:
    line = f"{_MOUNT_SOURCE} {root.resolve()} bpf "
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    return root != BPFFS and any(mount.startswith(line) for mount in mounts)


def _ensure_bpffs(root: Path) -> None:
    nearest = next(path for path in (root, *root.parents) if path.exists())
    if libc.filesystem_type(nearest) == libc.BPF_FS_MAGIC:
        return
    place = BPFFS if root.is_relative_to(BPFFS) else root
    place.mkdir(parents=True, exist_ok=True)
    try:
        libc.mount_bpffs(place, _MOUNT_SOURCE)
    except OSError as error:
        raise PinError(
            f"{root}: no bpffs there, and mounting one failed ({error.strerror}): "
            f"run `mount -t bpf bpf {place}` as root"
        ) from error


def _lock(root: Path) -> int:
    fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise PinError(
            f"{root}: another agent uses these pins: stop it first, one node has one agent"
        ) from error
    except OSError:
        os.close(fd)
        raise
    return fd


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise PinError(f"{error.filename or path}: {error.strerror}") from error
