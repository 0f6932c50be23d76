# SPDX-License-Identifier: Apache-2.0
"""The end of a flow that the kernel did not see: its time was over, or nobody had answered."""

from ebpflb.dataplane.flows.entries import reverse
from ebpflb.dataplane.layout.enums import (
    CtFlag,
    CtState,
    Direction,
    FlowEnd,
    FlowEvent,
    FlowPath,
    FlowSource,
    Hook,
)
from ebpflb.dataplane.layout.structs import (
    FLOW_RECORD_VERSION,
    Conntrack,
    FlowRecord,
    Traffic,
    Tuple,
)


def record_of_expired(key: bytes, entry: bytes, other: bytes | None, now: int) -> FlowRecord | None:
    """An END as the programs would have told of it; `now` is CLOCK_MONOTONIC in ns.

    `entry` and `other` are both directions, `key` that of the first. None for what is no flow, for
    one that was told of already, that is not sampled, or of which only the replies' entry is left.
    """
    original, reply = Conntrack.from_buffer_copy(entry), Conntrack()
    if other is not None:
        reply = Conntrack.from_buffer_copy(other)
    if original.direction == Direction.LB_DIR_REPLY:
        original, reply = reply, original
        key = reverse(bytes(reply.to))
    if not _is_told_of(original):
        return None
    return _record(Tuple.from_buffer_copy(key), original, reply, now)


def _is_told_of(original: Conntrack) -> bool:
    return (
        original.hook != Hook.LB_HOOK_RESERVED
        and bool(original.flags & CtFlag.LB_CT_SAMPLED)
        and not original.whole_state & CtState.LB_CT_ENDED
    )


def _record(place: Tuple, original: Conntrack, reply: Conntrack, now: int) -> FlowRecord:
    outside = original.hook == Hook.LB_HOOK_HOST_INGRESS
    return FlowRecord(
        version=FLOW_RECORD_VERSION,
        event=FlowEvent.LB_FLOW_END,
        path=FlowPath.LB_PATH_TC,
        end=FlowEnd.LB_END_TIMED_OUT if reply.packets else FlowEnd.LB_END_NO_ANSWER,
        proto=place.proto,
        hook=original.hook,
        source=FlowSource.LB_FROM_ELSEWHERE if outside else FlowSource.LB_FROM_THIS_NODE,
        time=now,
        started=original.created,
        client=place.saddr,
        client_port=place.sport,
        frontend=place.daddr,
        frontend_port=place.dport,
        backend_addr=original.to.daddr,
        backend_port=original.to.dport,
        flow_flags=original.flags,
        service=original.service,
        backend=original.backend,
        generation=original.generation,
        desc_flags=original.desc_flags,
        original=Traffic(original.packets, original.bytes),
        reply=Traffic(reply.packets, reply.bytes),
    )
