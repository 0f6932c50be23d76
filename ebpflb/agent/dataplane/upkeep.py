# SPDX-License-Identifier: Apache-2.0
"""Work after each pass over the flows, in its own thread so that no change waits for it."""

import logging
import threading
from collections.abc import Callable
from functools import partial

from ebpflb.dataplane.flows.affinity import expire_affinity
from ebpflb.dataplane.flows.client_uses import correct_client_uses
from ebpflb.dataplane.flows.closed_sockets import ClosedSockets
from ebpflb.dataplane.flows.diverted import bring_back
from ebpflb.dataplane.flows.open_connections import correct_open_connections
from ebpflb.dataplane.flows.unknown_connections import UnknownConnections
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import CtFlag
from ebpflb.dataplane.view.counts import read_active
from ebpflb.errors import EbpflbError

_log = logging.getLogger("ebpflb.agent")


class Upkeep:
    """Corrects counts of open connections, and deletes what no client or socket uses any more.

    After a table of new flows was replaced, it also moves the diverted flows back. And it looks
    whether unknown connections may be reset.
    """

    def __init__(self, unknown: UnknownConnections) -> None:
        self._unknown = unknown
        self._thread: threading.Thread | None = None
        self._closed_sockets = ClosedSockets()
        # Maps whose flows went to other tables of the same generation, and must be moved back.
        self._diverted: MapSet | None = None

    def bring_flows_back(self, maps: MapSet) -> None:
        """Call when new flows are no longer diverted."""
        self._diverted = maps

    def leave_flows(self) -> None:
        """Call before the tables are replaced: flows moved back now would be lost."""
        self._diverted = None
        if self._thread:
            self._thread.join()

    def begin(self, maps: MapSet) -> None:
        """Start a run, unless the last one has not finished."""
        if self._thread is None or not self._thread.is_alive():
            self._thread = threading.Thread(
                target=self._run, args=(maps,), name="ebpflb-upkeep", daemon=True
            )
            self._thread.start()

    def _run(self, maps: MapSet) -> None:
        # The node from which it comes counts what arrives in a tunnel.
        chosen_here = partial(read_active, maps, but=CtFlag.LB_CT_TUNNELED)
        _attempt(lambda: correct_open_connections(maps, lambda: chosen_here().flows))
        _attempt(lambda: correct_client_uses(maps))
        _attempt(lambda: expire_affinity(maps))
        _attempt(lambda: self._closed_sockets.forget(maps))
        _attempt(lambda: self._unknown.look(maps))
        if diverted := self._diverted:
            _attempt(lambda: self._bring_back(diverted))

    def _bring_back(self, maps: MapSet) -> None:
        if bring_back(maps) and self._diverted is maps:
            self._diverted = None


def _attempt(step: Callable[[], object]) -> None:
    try:
        step()
    except EbpflbError as error:
        _log.warning("map maintenance failed: %s", error)
