# SPDX-License-Identifier: Apache-2.0
"""Before the programs go: nothing new begins here, and the flows that are there may end."""

import time
from collections.abc import Callable

from ebpflb.dataplane.flows.entries import open_flows
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.records import AddrRecord

_LOOK_SECONDS = 0.2
# A handshake under way is in no table of established flows yet.
_SHORTEST_SECONDS = 1.0


def drain(
    maps: MapSet,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> int:
    """Take all frontends away, and wait until the TCP flows at tc have ended.

    New connections are for whoever else serves them. Returns how many flows are left after so many
    seconds. MapError.
    """
    _take_frontends_away(maps)
    began = clock()
    while True:
        sleep(_LOOK_SECONDS)
        passed, left = clock() - began, _open_flows(maps)
        if passed >= seconds or (not left and passed >= _SHORTEST_SECONDS):
            return left


def _take_frontends_away(maps: MapSet) -> None:
    """First the flags: without them no packet is refused because its port is unknown."""
    states, frontends = maps["lb_addr_flags"], maps["lb_frontends"]
    known = ((key, AddrRecord.unpack(value)) for key, value in states.items())
    states.update_batch([(key, each._replace(flags=0).pack()) for key, each in known if each.flags])
    frontends.delete_batch([key for key, _ in frontends.items()])


def _open_flows(maps: MapSet) -> int:
    return sum(len(open_flows(chunk.values)) for chunk in maps["lb_conntrack"].chunks())
