# SPDX-License-Identifier: Apache-2.0
"""Keeps netfilter from using source ports of our masqueraded flows: the reverse of Reservations.

When a Service moves back to kube-proxy while some of our flows continue, or all do in a drain,
kube-proxy masquerades new ones to the same pods. It may pick any port that connection tracking does
not know, and our flows bypass that. So flows of Services that we no longer serve are registered
with netfilter as long as they last.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from time import monotonic

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, PROTOCOL_AT, ends_of
from ebpflb.dataplane.kernel.ctnetlink import Reply, add_flows
from ebpflb.dataplane.kernel.maps import Chunk, MapSet
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction
from ebpflb.dataplane.layout.structs import LbConntrack, packed_format

_log = logging.getLogger("ebpflb.dataplane")

PERIOD_SECONDS = 60.0
# How long netfilter remembers a flow: beyond the next pass.
CLAIM_SECONDS = 150

_CHUNK = 2048
_FLOW = packed_format(LbConntrack, "to", "service", "direction", "state", "flags", "other_state")
# Plain ints: enum members are slower to compare.
_ORIGINAL, _CLOSED = int(Direction.LB_DIR_ORIGINAL), int(CtState.LB_CT_CLOSED)
_KINDS = int(CtFlag.LB_CT_SNAT | CtFlag.LB_CT_HAIRPIN | CtFlag.LB_CT_TO_POD)
# Only these have a port that netfilter could assign to others.
_LEAVES_THE_NODE = int(CtFlag.LB_CT_SNAT)

IsWanted = Callable[[int], bool]
"""Whether flows with this Service id are to be registered."""


class ClaimedPorts:
    """For one set of maps."""

    def __init__(
        self,
        maps: MapSet,
        *,
        add: Callable[[Iterable[Reply], int], int] = add_flows,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`add`: see add_flows(). `clock`: seconds."""
        self._tables = [maps[name] for name in FLOW_TABLES]
        self._add = add
        self._clock = clock
        self._pass: Iterator[int] | None = None
        # A previous agent may have left such flows.
        self._due: float | None = 0.0
        self._failure = ""

    def claim(self, is_wanted: IsWanted) -> None:
        """Register all flows at once. MapError."""
        claimed = sum(self._look(is_wanted))
        if claimed:
            self._due = self._clock() + PERIOD_SECONDS

    def step(self, is_wanted: IsWanted) -> bool:
        """Register some flows again if it is time to; returns whether there are more. MapError."""
        if self._pass is None:
            if self._due is None or self._clock() < self._due:
                return False
            self._pass, self._due = self._look(is_wanted), None
        for claimed in self._pass:
            if claimed:
                self._due = self._clock() + PERIOD_SECONDS
            return True
        self._pass = None
        return False

    def _look(self, is_wanted: IsWanted) -> Iterator[int]:
        for table in self._tables:
            for chunk in table.chunks(_CHUNK):
                yield self._tell(list(_masqueraded(chunk, is_wanted)))

    def _tell(self, flows: list[Reply]) -> int:
        failure = ""
        try:
            if flows:
                self._add(flows, CLAIM_SECONDS)
        except OSError as error:
            failure = error.strerror or str(error)
        if failure and failure != self._failure:
            _log.warning(
                "cannot register source ports with netfilter, which may reuse some: %s",
                failure,
            )
        if flows:
            self._failure = failure
        return len(flows)


def _masqueraded(chunk: Chunk, is_wanted: IsWanted) -> Iterator[Reply]:
    """The replies of flows that have not ended, as they arrive at the node."""
    for to, service, direction, state, flags, other_state in _FLOW.iter_unpack(chunk.values):
        is_leaving = direction == _ORIGINAL and flags & _KINDS == _LEAVES_THE_NODE
        if is_leaving and not (state | other_state) & _CLOSED and is_wanted(service):
            (node, port), (pod, pod_port) = ends_of(to)
            yield Reply(to[PROTOCOL_AT], pod, pod_port, node, port)
