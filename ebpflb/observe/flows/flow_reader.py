# SPDX-License-Identifier: Apache-2.0
"""The thread that takes flow records out of the kernel's ring five times a second.

The kernel wakes nobody: what it writes between two looks has to fit into the ring, and what does
not is counted there. A new set of maps may have a ring of its own; programs of the old set may
write to theirs for a little longer.
"""

import logging
import threading
from collections.abc import Callable, Sequence

from ebpflb.dataplane.flows.ring import FlowRing
from ebpflb.dataplane.kernel.maps import KernelMap
from ebpflb.errors import MapError
from ebpflb.observe.flows.flow_log import Maps

_log = logging.getLogger("ebpflb.agent")

POLL_SECONDS = 0.2
_MAP = "lb_flows"
# Looks at rings that are no longer the current one, since that came: some seconds.
_LAST_LOOKS = 25
# In one look, so that a flood of records does not keep the thread from anything else.
_MOST_READS = 16


class FlowReader:
    """Gives what it reads to `accept`, oldest first. Starts when there are maps."""

    def __init__(self, maps: Maps, accept: Callable[[Sequence[bytes]], None]) -> None:
        """`maps`: those in use, None before there are any."""
        self._maps = maps
        self._accept = accept
        self._source: object = None
        # The current one comes last.
        self._rings: list[FlowRing] = []
        self._looks_left = 0
        self._failed = ""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-flows", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. What was not read stays in the ring, for the next agent."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            self.poll()

    def poll(self) -> None:
        """Take what is there now."""
        try:
            self._follow_maps()
            for ring in self._rings:
                self._drain(ring)
        except MapError as error:
            self._note_failure(str(error))
        else:
            self._note_failure("")

    def _follow_maps(self) -> None:
        maps = self._maps()
        source = maps.get(_MAP) if maps else None
        if source is not self._source and isinstance(source, KernelMap):
            self._rings.append(FlowRing(source))
            self._source = source
            self._looks_left = _LAST_LOOKS
        elif len(self._rings) > 1:
            self._looks_left -= 1
            if self._looks_left <= 0:
                *old, current = self._rings
                self._rings = [current]
                for ring in old:
                    ring.close()

    def _drain(self, ring: FlowRing) -> None:
        for _ in range(_MOST_READS):
            records = ring.read()
            if not records:
                return
            self._accept(records)

    def _note_failure(self, text: str) -> None:
        if text and text != self._failed:
            _log.error("flow records cannot be read: %s; trying again", text)
        self._failed = text
