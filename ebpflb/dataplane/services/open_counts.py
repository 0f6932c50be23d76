# SPDX-License-Identifier: Apache-2.0
"""The open connections that the programs count, by Service port."""

from collections.abc import Iterable, Mapping

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.records import pack_index, unpack_open
from ebpflb.dataplane.services.map_state import MapState
from ebpflb.model.service import ServicePortName


def read_open(state: MapState, wanted: Iterable[ServicePortName]) -> Mapping[ServicePortName, int]:
    """Those of these ports, of both families. MapError.

    Only backends that the port has now count, and only where its frontends have `counts_open`.
    """
    known = filter(None, map(state.port, wanted))
    return {port.name: sum(open_of(state.maps, index) for index in port.backends) for port in known}


def open_of(maps: MapSet, index: int) -> int:
    """Those of one backend. MapError."""
    return unpack_open(maps["lb_open"].lookup(pack_index(index)) or b"")
