# SPDX-License-Identifier: Apache-2.0
"""Compiled objects in files, so that the same text is compiled only once.

They do not depend on the kernel, and their key does only through `Build`: objects compiled when an
image was built are found under the same key on a node.

A file's name is a hash of everything that could change the result of a compile. Files that other
users may have written are never loaded. Files appear atomically, by rename. A lock only keeps
`ebpflb cleanup` from removing the directory while other agents of the machine run.
"""

import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from ebpflb import own_files
from ebpflb.dataplane.load.bytecode import Bytecode, packed, unpacked
from ebpflb.dataplane.load.source_text import bpf_directory

DIRECTORY = Path("/var/cache/ebpflb")
# Objects compiled when the image was built, and the bcc version that did it.
OF_IMAGE = Path(sys.prefix) / "share/ebpflb"
BCC_OF_IMAGE = "bcc-version"
FILES = 128  # of the agent's programs each takes 100 kB

_FORMAT = b"ebpflb bytecode 1\n"


def key(text: str, cflags: Sequence[str]) -> str | None:
    """The name for the objects of a text; `cflags` without the directory of pins.

    None if the version of bcc is unknown.
    """
    version = bcc_version()
    if version is None:
        return None
    parts = [_FORMAT.decode(), version, platform.machine(), _headers(), text, *cflags]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def find(directory: Path, name: str) -> Bytecode | None:
    """The objects stored under that name, if complete and not writable by anybody else."""
    try:
        with own_files.opened(directory) as folder:
            with own_files.reading(folder, name) as file:
                content = file.read()
            with suppress(OSError):
                os.utime(name, dir_fd=folder)
    except OSError:
        return None
    head, checksum, kept = _parts(content)
    if head != _FORMAT or checksum != hashlib.sha256(kept).digest():
        return None
    return unpacked(kept)


def keep(directory: Path, name: str, bytecode: Bytecode) -> None:
    """Store objects under that name, and keep the most recently used ones: FILES in total.

    Does nothing if the directory cannot be used.
    """
    kept = packed(bytecode)
    content = _FORMAT + hashlib.sha256(kept).digest() + kept
    with suppress(OSError):
        own_files.make(directory)
        with own_files.opened(directory) as folder:
            _write(folder, name, content)
            _remove_oldest(folder)


@contextmanager
def held(directory: Path) -> Iterator[None]:
    """Nobody removes the directory meanwhile. It is made if it is not there and can be."""
    with ExitStack() as stack:
        with suppress(OSError):
            own_files.make(directory)
            folder = stack.enter_context(own_files.opened(directory))
            fcntl.flock(folder, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield


def remove(directory: Path) -> bool:
    """Remove the directory with everything in it.

    False if it does not exist, is not ours, or is held by a running agent.
    """
    try:
        with own_files.opened(directory) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for each in _entries(folder):
                if each.is_dir(follow_symlinks=False):
                    shutil.rmtree(each.name, dir_fd=folder)
                else:
                    os.unlink(each.name, dir_fd=folder)
        directory.rmdir()
    except OSError:
        return False
    return True


def bcc_version() -> str | None:
    """Does not import bcc, which would load LLVM. An image may not contain bcc."""
    found = importlib.util.find_spec("bcc")
    there = OF_IMAGE / BCC_OF_IMAGE
    if found is not None and found.origin is not None:
        there = Path(found.origin).with_name("version.py")
    try:
        return there.read_text()
    except OSError:
        return None


def _headers() -> str:
    """Kernel headers are included by a text, but not part of it."""
    digest = hashlib.sha256()
    for path in sorted((bpf_directory() / "uapi").rglob("*.h")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _parts(content: bytes) -> tuple[bytes, bytes, bytes]:
    head, rest = content[: len(_FORMAT)], content[len(_FORMAT) :]
    size = hashlib.sha256().digest_size
    return head, rest[:size], rest[size:]


def _write(folder: int, name: str, content: bytes) -> None:
    # Two agents may keep the same at once.
    building = f"{name}.{secrets.token_hex(4)}"
    with own_files.replacing(folder, name, building) as file:
        file.write(content)


def _remove_oldest(folder: int) -> None:
    """Also removes unfinished files, which age like the others."""
    files = (each for each in _entries(folder) if not each.is_dir(follow_symlinks=False))
    used = {each.name: each.stat(follow_symlinks=False).st_mtime for each in files}
    for name in sorted(used, key=lambda each: used[each], reverse=True)[FILES:]:
        os.unlink(name, dir_fd=folder)


def _entries(folder: int) -> "list[os.DirEntry[str]]":
    with os.scandir(folder) as found:
        return list(found)
