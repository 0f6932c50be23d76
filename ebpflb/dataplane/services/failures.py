# SPDX-License-Identifier: Apache-2.0
"""The consecutive failed connections counted by the programs, by Service port and endpoint."""

from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator

from ebpflb.dataplane.layout.records import (
    TRIAL,
    WATCHED,
    BackendRecord,
    SocketAddress,
    unpack_failures,
)
from ebpflb.dataplane.services.map_state import MapState
from ebpflb.model.ejection import FailureCount, FailureCounts, Place
from ebpflb.model.service import ServicePortName


def read_failures(state: MapState, also: Iterable[ServicePortName]) -> FailureCounts:
    """Endpoints with failures, and all watched endpoints of the ports in `also`. MapError."""
    values = b"".join(chunk.values for chunk in state.maps["lb_failures"].chunks())
    known = map(state.port, also)
    wanted = {*_nonzero(values), *(index for port in known if port for index in port.backends)}
    found: dict[ServicePortName, dict[Place, FailureCount]] = defaultdict(dict)
    for index in wanted:
        record = BackendRecord.unpack(state.backends[index])
        port = state.ports.get(record.service)
        if port and record.flags & WATCHED:
            address, number, _ = SocketAddress.unpack(record.socket)
            counted = unpack_failures(values[8 * index : 8 * index + 8])
            on_trial = bool(record.flags & TRIAL)
            found[port.name][Place(address, number)] = FailureCount(*counted, on_trial)
    return found


def _nonzero(values: bytes) -> Iterator[int]:
    if any(values):
        yield from (index for index, each in enumerate(array("Q", values)) if each)
