# SPDX-License-Identifier: Apache-2.0
"""Keeps the process small, free of long pauses, and alive when memory is short."""

import ctypes
import gc
import logging
import resource
import sys
from pathlib import Path

from ebpflb.log import fields

_log = logging.getLogger("ebpflb.agent")
# Enough for anyone; some tools look through all descriptor numbers up to the limit.
ENOUGH_FILES = 65536
_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
_SWITCH_SECONDS = 0.0005
# A first sync soon makes Python's default of 700 new objects, and keeps nearly all of them.
_COLLECT_AFTER = 10_000


def settle() -> None:
    """Exempt all existing objects from garbage collection, and free unused memory.

    Call it after much has been built up: otherwise each full collection would go over every
    Service again, and changes would have to wait for it.
    """
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def collect_seldom() -> None:
    """Have the garbage collector run only once there are many new objects."""
    gc.set_threshold(_COLLECT_AFTER)


def switch_threads_often() -> None:
    """Let a thread that computes, as for a page of metrics, delay others a tenth as long.

    A change waits for the interpreter at each step that looks into a map or a socket.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def set_oom_score(oom_score_adj: int) -> None:
    """Have the kernel kill other processes first when memory is short; -1000 to 1000."""
    try:
        _OOM_SCORE_ADJ.write_text(str(oom_score_adj))
    except OSError as error:
        shown = fields(oom_score_adj=oom_score_adj, needs="CAP_SYS_RESOURCE")
        _log.debug("cannot lower the own OOM score: %s", error.strerror, extra=shown)


def raise_file_limit() -> None:
    """Raise the soft limit of open files: each health check node port needs one or two.

    systemd starts services with 1,024, of which two hundred Services could use up half.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
