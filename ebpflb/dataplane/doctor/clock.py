# SPDX-License-Identifier: Apache-2.0
"""Is the node's clock synchronised? Times of the API are compared with it."""

import ctypes
import os
from collections.abc import Callable

from ebpflb.dataplane.doctor.finding import Finding, Severity

CHECK = "clock"

_STA_UNSYNC = 0x0040
_ROOM = 256
_SYNCHRONISE = "run chrony, ntpd or systemd-timesyncd; latencies that are measured are wrong"


class _Timex(ctypes.Structure):
    """struct timex; `rest`: what follows the status."""

    _fields_ = [
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_uint8 * _ROOM),
    ]


def kernel_status() -> int:
    """What adjtimex(2) says of the clock (STA_*). OSError."""
    state = _Timex()
    if ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(state)) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(state.status)


def check_clock(status: Callable[[], int] = kernel_status) -> list[Finding]:
    """A note: Services do not depend on the clock. OSError."""
    if status() & _STA_UNSYNC:
        what = "nothing synchronises it (adjtimex: STA_UNSYNC)"
        return [Finding(Severity.NOTE, CHECK, "", what, _SYNCHRONISE)]
    return [Finding(Severity.OK, CHECK, "", "it is synchronised")]
