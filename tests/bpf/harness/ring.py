# SPDX-License-Identifier: Apache-2.0
"""The records in lb_flows: read as libbpf does it, but only when a test asks for them."""

import mmap
from ctypes import sizeof

from ebpflb.dataplane.kernel.maps import BpfMap, KernelMap
from ebpflb.dataplane.layout.enums import FlowEvent
from ebpflb.dataplane.layout.structs import LbFlowRecord, u32, u64

ALL_EVENTS = sum(1 << event for event in FlowEvent)

_BUSY, _DISCARDED = 1 << 31, 1 << 30
_HEADER = 8


class Ring:
    """The reader's end of a ring buffer."""

    def __init__(self, ring: BpfMap) -> None:
        assert isinstance(ring, KernelMap)
        self._mask = ring.max_entries - 1
        page = mmap.PAGESIZE
        self._consumer = mmap.mmap(ring.fd, page)
        size = page + 2 * ring.max_entries
        self._producer = mmap.mmap(ring.fd, size, prot=mmap.PROT_READ, offset=page)

    def take(self) -> list[LbFlowRecord]:
        """The records since the last call."""
        position = u64.from_buffer_copy(self._consumer).value
        found = []
        while position < u64.from_buffer_copy(self._producer).value:
            at = mmap.PAGESIZE + (position & self._mask)
            length = u32.from_buffer_copy(self._producer, at).value
            assert not length & (_BUSY | _DISCARDED)
            assert length == sizeof(LbFlowRecord)
            found.append(LbFlowRecord.from_buffer_copy(self._producer, at + _HEADER))
            position += _HEADER + length + -length % 8
        self._consumer[:8] = bytes(u64(position))
        return found
