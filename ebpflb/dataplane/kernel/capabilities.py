# SPDX-License-Identifier: Apache-2.0
"""The capabilities of a thread. Threads and children that it starts have no others."""

import struct
from collections.abc import Iterable
from enum import IntEnum

from ebpflb.dataplane.kernel import libc


class Capability(IntEnum):
    """Those that some thread of the agent keeps; from <linux/capability.h>."""

    DAC_OVERRIDE = 1
    NET_BIND_SERVICE = 10
    NET_ADMIN = 12
    NET_RAW = 13
    SYS_PTRACE = 19
    SYS_ADMIN = 21
    PERFMON = 38
    BPF = 39


# _LINUX_CAPABILITY_VERSION_3, for the calling thread.
_HEADER = struct.pack("=Ii", 0x20080522, 0)
# The effective, permitted and inheritable set: first the lower halves of all, then the upper ones.
_SETS = struct.Struct("=6I")
_HALF = 32


def keep_only(capabilities: Iterable[Capability]) -> None:
    """Give up all others, for good: also a program that root executes gets none of them back.

    Those that the thread does not have it does not get.
    """
    libc.forbid_new_privileges()
    wanted = sum(1 << each for each in set(capabilities))
    _, permitted, _, _, permitted_above, _ = _SETS.unpack(libc.capget(_HEADER, _SETS.size))
    low, high = permitted & wanted, permitted_above & wanted >> _HALF
    libc.capset(_HEADER, _SETS.pack(low, low, 0, high, high, 0))
