# SPDX-License-Identifier: Apache-2.0
"""The consecutive failed connections counted by the programs, by Service port and endpoint."""

import ctypes
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.layout.records import TRIAL, WATCHED, BackendRecord, SocketRecord
from ebpflb.dataplane.layout.structs import LbClient, LbClientKey, LbFailures
from ebpflb.dataplane.services.map_state import MapState
from ebpflb.model.address import Address, Family, SocketAddress, family_of
from ebpflb.model.ejection import FailureCount, FailureCounts
from ebpflb.model.service import ServicePortName

_SIZE = ctypes.sizeof(LbFailures)
_NOT_ZERO = re.compile(rb"[^\0]")
# A client that has connected within this time, in nanoseconds, is one of the Service's clients.
_RECENT = 300 * 1_000_000_000


def read_failures(
    state: MapState,
    also: Iterable[ServicePortName],
    clock: Callable[[], int] = time.monotonic_ns,
) -> FailureCounts:
    """Endpoints with failures, and all watched endpoints of the ports in `also`. MapError.

    `clock`: CLOCK_MONOTONIC in nanoseconds.
    """
    values = b"".join(chunk.values for chunk in state.maps["lb_failures"].chunks())
    known = map(state.port, also)
    wanted = {*_nonzero(values), *(index for port in known if port for index in port.backends)}
    if not wanted:
        return {}
    clients = _Clients(state.maps["lb_clients"], clock() - _RECENT)
    found: dict[ServicePortName, dict[SocketAddress, FailureCount]] = defaultdict(dict)
    for index in wanted:
        record = BackendRecord.unpack(state.backends[index])
        port = state.ports.get(record.service)
        if port and record.flags & WATCHED:
            address, number, _ = SocketRecord.unpack(record.socket)
            place = SocketAddress(address, number)
            counted = LbFailures.from_buffer_copy(values, _SIZE * index)
            found[port.name][place] = FailureCount(
                counted.in_a_row,
                bool(counted.tried),
                bool(record.flags & TRIAL),
                counted.failed.bit_count(),
                *clients.count(index, record, place),
            )
    return found


def _nonzero(values: bytes) -> Iterator[int]:
    at = 0
    while found := _NOT_ZERO.search(values, at):
        index = found.start() // _SIZE
        yield index
        at = (index + 1) * _SIZE


class _Clients:
    """How many clients have completed a handshake since a time, by CLOCK_MONOTONIC in ns."""

    def __init__(self, table: BpfMap, since: int) -> None:
        # By Service id and family, and by backend.
        self._of_port: Counter[tuple[int, Family]] = Counter()
        self._of_backend: Counter[tuple[int, int]] = Counter()
        for each, found in table.items():
            last = LbClient.from_buffer_copy(found)
            if last.established >= since:
                key = LbClientKey.from_buffer_copy(each)
                self._of_port[key.service, family_of(Address(bytes(key.client)))] += 1
                self._of_backend[last.backend, last.serial] += 1

    def count(self, index: int, record: BackendRecord, place: SocketAddress) -> tuple[int, int]:
        """Those of the Service port that could use the backend, and those that used it last."""
        of_port = self._of_port[record.service, family_of(place.address)]
        return of_port, self._of_backend[index, record.serial]
