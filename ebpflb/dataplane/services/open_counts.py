# SPDX-License-Identifier: Apache-2.0
"""The open connections that the programs count, by Service port."""

from collections.abc import Iterable, Mapping

from ebpflb.dataplane.layout.records import pack_index, unpack_open
from ebpflb.dataplane.services.map_state import MapState
from ebpflb.model.service import ServicePortName


def read_open(state: MapState, wanted: Iterable[ServicePortName]) -> Mapping[ServicePortName, int]:
    """Those of these ports, of both families. MapError.

    Only backends that the port has now count, and only where its frontends have `counts_open`.
    """
    counts = state.maps["lb_open"]

    def count(index: int) -> int:
        return unpack_open(counts.lookup(pack_index(index)) or b"")

    known = filter(None, map(state.port, wanted))
    return {port.name: sum(map(count, port.backends)) for port in known}
