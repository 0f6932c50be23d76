# SPDX-License-Identifier: Apache-2.0
"""Files that nobody else may have written: they and their directory belong to this user alone.

Both are checked by descriptor, and neither may be a symlink. Who may write to the parent directory
does not matter: a directory that somebody puts in the place of this one is his.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EPERM
from pathlib import Path
from typing import BinaryIO

_OTHERS_MAY_WRITE = 0o022


def make(directory: Path) -> None:
    """Make the directory, for this user alone, unless something is there. OSError."""
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)


@contextmanager
def opened(directory: Path) -> Iterator[int]:
    """A descriptor of the directory. PermissionError if others may write to it."""
    folder = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        _refuse_others(folder)
        yield folder
    finally:
        os.close(folder)


@contextmanager
def reading(folder: int, name: str) -> Iterator[BinaryIO]:
    """A file of that directory. PermissionError if others may write to it."""
    # O_NONBLOCK: whatever else may be there, opening it does not wait.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(name, flags, dir_fd=folder), "rb") as file:
        _refuse_others(file.fileno())
        yield file


@contextmanager
def appending(folder: int, name: str) -> Iterator[int]:
    """A descriptor of a file of that directory, which is made. PermissionError as in reading()."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
    file = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        _refuse_others(file)
        yield file
    finally:
        os.close(file)


def append(file: int, size: int, text: bytes) -> None:
    """Write all of it, or restore the file's size: of a descriptor that appends. OSError."""
    rest = memoryview(text)
    try:
        while rest:
            rest = rest[os.write(file, rest) :]
    except OSError:
        os.ftruncate(file, size)
        raise


@contextmanager
def replacing(folder: int, name: str, building: str) -> Iterator[BinaryIO]:
    """Written as `building`, the file is there by its name at the end, or after an error as it was.

    Remains of an earlier `building` are removed.
    """
    with suppress(FileNotFoundError):
        os.unlink(building, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    try:
        with open(os.open(building, flags, 0o600, dir_fd=folder), "wb") as file:
            yield file
        os.rename(building, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(building, dir_fd=folder)
        raise


def _refuse_others(descriptor: int) -> None:
    found = os.fstat(descriptor)
    if found.st_uid != os.geteuid() or found.st_mode & _OTHERS_MAY_WRITE:
        raise PermissionError(EPERM, "others may write there")
