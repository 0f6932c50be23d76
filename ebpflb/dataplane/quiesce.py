# SPDX-License-Identifier: Apache-2.0
"""Waiting until no program in the kernel can hold what it found in a map before."""

import ctypes
import platform
import time

_CALL_NUMBERS = {"x86_64": 324}
_GENERIC_CALL_NUMBER = 283
_GLOBAL = 1
_LONGEST_RUN = 0.1

_libc = ctypes.CDLL(None, use_errno=True)


def membarrier() -> None:
    """Return after an RCU grace period (some 10 ms): every program that was running has ended.

    A kernel that refuses (nohz_full) is given 0.1 s, far more than a program may run.
    """
    number = _CALL_NUMBERS.get(platform.machine(), _GENERIC_CALL_NUMBER)
    if _libc.syscall(number, _GLOBAL, 0, 0) != 0:
        time.sleep(_LONGEST_RUN)
