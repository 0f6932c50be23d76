# SPDX-License-Identifier: Apache-2.0
"""Keeping the process small, without pauses, and alive when memory is short."""

import ctypes
import gc
import logging
import sys
from pathlib import Path

from ebpflb.log import fields

_log = logging.getLogger("ebpflb.agent")
_OOM_SCORE_ADJ = Path("/proc/self/oom_score_adj")
_SWITCH_SECONDS = 0.0005
# Python's own 700 objects are soon there in a first sync, which keeps nearly all that it makes.
_COLLECT_AFTER = 10_000


def settle() -> None:
    """Take what is there now for permanent, and give unused memory back to the kernel.

    To be called once much has been built up: otherwise each full garbage collection would go over
    every Service again, and changes would have to wait for that.
    """
    gc.collect()
    gc.freeze()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def collect_seldom() -> None:
    """Have the garbage collector go over what is new once there is more of it."""
    gc.set_threshold(_COLLECT_AFTER)


def give_way() -> None:
    """Have a thread that computes, as for a page of metrics, keep others waiting a tenth as long.

    A change waits for the interpreter at each step that looks into a map or a socket.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)


def protect(oom_score_adj: int) -> None:
    """Have the kernel kill others first when memory is short; -1000 to 1000, less is safer."""
    try:
        _OOM_SCORE_ADJ.write_text(str(oom_score_adj))
    except OSError as error:
        shown = fields(oom_score_adj=oom_score_adj, needs="CAP_SYS_RESOURCE")
        _log.debug("cannot lower the own OOM score: %s", error.strerror, extra=shown)
