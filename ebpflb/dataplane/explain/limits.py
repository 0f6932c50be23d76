# SPDX-License-Identifier: Apache-2.0
"""Limits of a Service port: what endpoints and the client have of them now (limits.h)."""

import time
from collections.abc import Iterable
from typing import NamedTuple

from ebpflb.dataplane.explain.lookups import IndexedBackend, Lookups
from ebpflb.dataplane.layout.enums import DropReason, Hook
from ebpflb.dataplane.layout.records import DescRecord
from ebpflb.model.address import Address
from ebpflb.model.extensions.limits import RateLimit

# How many backends a program looks at before it gives up.
MOST_TRIED = 8
_SECOND = 1_000_000_000
_AT_SOCKET = "limits per client do not apply to this one, which connects at the socket"
_NO_CLIENT = "limits per client do not apply to the node itself"


class Excess(NamedTuple):
    """Why a connection is refused, or dropped."""

    reason: DropReason
    is_dropped: bool
    why: str


class _Used(NamedTuple):
    """By a client. due: when its bucket is full again, by CLOCK_MONOTONIC in ns."""

    open: int
    due: int
    now: int

    def at_once(self, limit: RateLimit) -> int:
        """How many connections it may open now."""
        left = self.now + limit.ahead - max(self.due, self.now)
        return left // limit.interval + 1

    def wait(self, limit: RateLimit) -> float:
        """Seconds until it may open one."""
        return (self.due - limit.ahead - self.now) / _SECOND


def _used(lookups: Lookups, desc: DescRecord, client: Address, hook: Hook) -> _Used:
    found = lookups.client_use(desc, client, hook)
    return _Used(int(found.open), int(found.due), time.monotonic_ns())


def client_excess(lookups: Lookups, desc: DescRecord, client: Address, hook: Hook) -> Excess | None:
    """lb_limit_check_client(); None: the client is within its limits."""
    limits = lookups.limits(desc)
    if not limits.are_of_clients or hook is Hook.LB_HOOK_HOST_EGRESS:
        return None
    used = _used(lookups, desc, client, hook)
    opened, new = limits.per_client, limits.new_per_client
    if opened and used.open >= opened.most:
        reason = DropReason.LB_DROP_CLIENT_OPEN
        why = f"{reason.sentence}: {used.open} of {opened.most}"
        return Excess(reason, opened.drops, why)
    if new and used.at_once(new) < 1:
        reason = DropReason.LB_DROP_CLIENT_NEW
        why = f"{reason.sentence}: {new.rate}, the next one in {used.wait(new):.3g} s"
        return Excess(reason, new.drops, why)
    return None


def full_backends(
    lookups: Lookups, desc: DescRecord, backends: Iterable[IndexedBackend]
) -> frozenset[int]:
    """The indices of those that have as many connections as they may."""
    limit = lookups.limits(desc).per_endpoint
    if limit is None:
        return frozenset()
    indices = (each.map_index for each in backends)
    return frozenset(each for each in indices if lookups.open_of(each) >= limit.most)


def backends_excess(lookups: Lookups, desc: DescRecord, count: int) -> Excess:
    """If all of `count` backends are full. Not all of many were tried: the client repeats it."""
    limit, reason = lookups.limits(desc).per_endpoint, DropReason.LB_DROP_BACKENDS_FULL
    drops = bool(limit and limit.drops) or count > MOST_TRIED
    return Excess(reason, drops, reason.sentence)


def told(lookups: Lookups, desc: DescRecord, client: Address, hook: Hook | None) -> str:
    """What the client has of its limits, in words; "" without any. hook: None at the socket."""
    limits = lookups.limits(desc)
    if not limits.are_of_clients:
        return ""
    if hook is None:
        return _AT_SOCKET
    if hook is Hook.LB_HOOK_HOST_EGRESS:
        return _NO_CLIENT
    used = _used(lookups, desc, client, hook)
    parts = [f"has {max(0, used.open)} open"] * bool(limits.per_client)
    if new := limits.new_per_client:
        parts.append(f"may open {max(0, used.at_once(new))} at once")
    return f"the client {' and '.join(parts)}"
