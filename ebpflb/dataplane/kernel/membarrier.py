# SPDX-License-Identifier: Apache-2.0
"""What programs on other CPUs can still hold, and what they see first of two writes."""

import ctypes
import os
import platform
import time

_CALL_NUMBERS = {"x86_64": 324}
_GENERIC_CALL_NUMBER = 283
_GLOBAL, _GLOBAL_EXPEDITED = 1, 2
_LONGEST_RUN = 0.1

_libc = ctypes.CDLL(None, use_errno=True)


def membarrier() -> None:
    """Return after an RCU grace period (some 10 ms): every program that was running has ended.

    A kernel that refuses (nohz_full) is given 0.1 s, far more than a program may run.
    """
    if not _ask(_GLOBAL):
        time.sleep(_LONGEST_RUN)


def order_writes() -> None:
    """Return when all CPUs see what this thread has written to maps, before what it writes next.

    A system call by itself does not order writes to arrays, and arm64 may turn them round. The
    call begins with a memory barrier (kernel/sched/membarrier.c), and so does giving up the CPU,
    which is left where the kernel refuses.
    """
    if not _ask(_GLOBAL_EXPEDITED):
        os.sched_yield()


def _ask(command: int) -> bool:
    number = _CALL_NUMBERS.get(platform.machine(), _GENERIC_CALL_NUMBER)
    return bool(_libc.syscall(number, command, 0, 0) == 0)
