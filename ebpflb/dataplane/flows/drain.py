# SPDX-License-Identifier: Apache-2.0
"""The last thing before the programs go: others serve new connections, and known ones may end."""

import time
from collections.abc import Callable
from itertools import chain

from ebpflb.dataplane.flows.claimed_ports import ClaimedPorts
from ebpflb.dataplane.flows.conntrack import is_udp, lives, open_flows
from ebpflb.dataplane.kernel.maps import MapSet, split_chunks
from ebpflb.dataplane.layout.enums import CtState
from ebpflb.dataplane.layout.records import AddrRecord

_LOOK_SECONDS = 0.2
# A handshake in progress is not in a table of established flows yet.
_SHORTEST_SECONDS = 1.0


def drain(
    maps: MapSet,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    claims: ClaimedPorts | None = None,
) -> int:
    """Remove all frontends, and wait until the TCP flows at tc have ended.

    New connections go to whatever else serves them, such as kube-proxy. Netfilter leaves the source
    ports of open flows alone, but may use those of flows ended here. So ended flows are deleted:
    otherwise replies would go to the wrong client. Returns how many flows are left after this many
    seconds. MapError.
    """
    claims = claims or ClaimedPorts(maps, clock=clock)
    # Before others choose ports, and again for flows that began meanwhile.
    claims.claim(_every)
    _take_frontends_away(maps)
    claims.claim(_every)
    began = clock()
    while True:
        short = maps["lb_ct_short"]
        short.delete_batch([key for key, value in split_chunks(short) if _has_ended(value)])
        sleep(_LOOK_SECONDS)
        while claims.step(_every):
            pass
        passed, left = clock() - began, _open_flows(maps)
        if passed >= seconds or (not left and passed >= _SHORTEST_SECONDS):
            return left


def _every(_: int) -> bool:
    return True


def _take_frontends_away(maps: MapSet) -> None:
    """Flags first: without them no packet is refused because its port is unknown."""
    states, frontends = maps["lb_addr_flags"], maps["lb_frontends"]
    known = ((key, AddrRecord.unpack(value)) for key, value in states.items())
    states.update_batch([(key, each._replace(flags=0).pack()) for key, each in known if each.flags])
    frontends.delete_batch([key for key, _ in frontends.items()])


def _has_ended(value: bytes) -> bool:
    ((*_, state, other_state),) = lives(value)
    return bool((state | other_state) & CtState.LB_CT_CLOSED)


def _open_flows(maps: MapSet) -> int:
    values = (chunk.values for chunk in maps["lb_conntrack"].chunks())
    tunneled = (value for key, value in split_chunks(maps["lb_ct_dsr"]) if not is_udp(key))
    return sum(len(open_flows(each)) for each in chain(values, tunneled))
