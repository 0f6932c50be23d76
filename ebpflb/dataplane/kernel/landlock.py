# SPDX-License-Identifier: Apache-2.0
"""The files that a thread may read and write. Threads and children that it starts get no others.

Such a thread can neither mount anything nor look into processes that are not restricted the same
way: both follow from Landlock itself. Needs Linux 5.13.
"""

import errno
import os
import stat
import struct
from collections.abc import Iterable
from enum import IntFlag
from pathlib import Path

from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.errors import ProbeError

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_FOR_VERSION, _PATH_BENEATH = 1, 1
_RULESET, _RULE = struct.Struct("=Q"), struct.Struct("=Qi")


class _Access(IntFlag):
    """From <linux/landlock.h>."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    # Remove and make whatever there is in a directory: bits 4 to 12.
    CHANGE_DIR = (1 << 13) - (1 << 4)
    REFER = 1 << 13
    TRUNCATE = 1 << 14


_READ = _Access.READ_FILE | _Access.READ_DIR
_WRITE = _Access.WRITE_FILE | _Access.CHANGE_DIR | _Access.REFER | _Access.TRUNCATE
_OF_FILES = _Access.EXECUTE | _Access.WRITE_FILE | _Access.READ_FILE | _Access.TRUNCATE
# The version that each came with: Linux 5.19 and 6.2.
_LATER = {2: _Access.REFER, 3: _Access.TRUNCATE}


def restrict_files(readable: Iterable[Path] | None, writable: Iterable[Path]) -> None:
    """Allow only what is beneath these, as far as it exists; `readable` None: read everything.

    Call capabilities.keep_only() first. ProbeError if the kernel has no Landlock.
    """
    known = _WRITE | (_Access(0) if readable is None else _READ | _Access.EXECUTE)
    version = landlock_version()
    for since, access in _LATER.items():
        if version < since:
            known &= ~access
    with owned(libc.system_call(_CREATE_RULESET, _RULESET.pack(known), _RULESET.size, 0)) as rules:
        for path in readable or ():
            _allow(rules, path, _READ & known)
        for path in writable:
            _allow(rules, path, (_READ | _WRITE) & known)
        libc.system_call(_RESTRICT_SELF, rules, 0)


def landlock_version() -> int:
    """ProbeError if the kernel has none."""
    try:
        return libc.system_call(_CREATE_RULESET, 0, 0, _ASK_FOR_VERSION)
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise ProbeError("the kernel has no Landlock (Linux 5.13, CONFIG_LSM)") from error


def _allow(rules: int, path: Path, access: _Access) -> None:
    try:
        found = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    with owned(found):
        if not stat.S_ISDIR(os.fstat(found).st_mode):
            access &= _OF_FILES
        libc.system_call(_ADD_RULE, rules, _PATH_BENEATH, _RULE.pack(access, found), 0)
