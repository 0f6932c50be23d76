# SPDX-License-Identifier: Apache-2.0
"""Reads lb_flows, a ring buffer of the kernel, through libbpf: it knows the order of memory."""

import ctypes
import weakref
from functools import cache
from typing import Any

from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.errors import MapError, ProbeError

# At most so many records at once: a millisecond or two, in which no other thread runs.
BUDGET = 2048

_Take = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class FlowRing:
    """The reading end of a ring. For one thread; whoever reads takes the records from all others.

    What was read is gone, and the kernel has its room again.
    """

    def __init__(self, source: KernelMap) -> None:
        """MapError when it is no ring buffer, or cannot be mapped."""
        self._source = source
        self._records: list[bytes] = []
        # Held, because libbpf calls it.
        self._take = _Take(self._add)
        new = _library().ring_buffer__new
        self._ring: int | None = new(source.fd, self._take, None, None)
        if not self._ring:
            raise MapError(source.name, "mapping", ctypes.get_errno())
        self._closer = weakref.finalize(self, _library().ring_buffer__free, self._ring)

    def close(self) -> None:
        """Unmap it; a second call does nothing."""
        self._closer()

    def read(self) -> list[bytes]:
        """The oldest records as the kernel wrote them, up to BUDGET; none when it is empty."""
        records = self._records = []
        result = _library().ring_buffer__consume(self._ring)
        if result < 0 and len(records) < BUDGET:
            raise MapError(self._source.name, "reading", -result)
        return records

    def _add(self, _: object, data: int, size: int) -> int:
        self._records.append(ctypes.string_at(data, size))
        return 0 if len(self._records) < BUDGET else -1


@cache
def _library() -> Any:
    """libbpf.so.1, called without letting go of the interpreter: it calls back for each record."""
    try:
        library = ctypes.PyDLL("libbpf.so.1", use_errno=True)
    except OSError as error:
        raise ProbeError("libbpf.so.1 not found: install the package libbpf1 or libbpf") from error
    library.ring_buffer__new.restype = ctypes.c_void_p
    library.ring_buffer__new.argtypes = [ctypes.c_int, _Take, ctypes.c_void_p, ctypes.c_void_p]
    library.ring_buffer__consume.argtypes = [ctypes.c_void_p]
    library.ring_buffer__free.argtypes = [ctypes.c_void_p]
    library.ring_buffer__free.restype = None
    return library
