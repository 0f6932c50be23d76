# SPDX-License-Identifier: Apache-2.0
"""Which clients of Service ports have come to their limits."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.layout.structs import LbClientKey, LbClientUse
from ebpflb.dataplane.view.snapshot import read_limits
from ebpflb.model.address import Address
from ebpflb.model.extensions.limits import NO_LIMITS, Limits


class LimitedClient(NamedTuple):
    """reason: of which limit the next connection would be one too many."""

    client: Address
    reason: DropReason


def limited_clients(
    maps: MapSet, clock: Callable[[], int] = time.monotonic_ns
) -> Mapping[int, tuple[LimitedClient, ...]]:
    """By Service id, in the order of their addresses. MapError.

    `clock`: CLOCK_MONOTONIC in ns.
    """
    limits = {each: found for each, found in read_limits(maps).items() if found.are_of_clients}
    if not limits:
        return {}
    now = clock()
    found: dict[int, list[LimitedClient]] = defaultdict(list)
    for raw, value in maps["lb_client_uses"].items():
        key = LbClientKey.from_buffer_copy(raw)
        of_port = limits.get(int(key.service), NO_LIMITS)
        if reason := _over(of_port, LbClientUse.from_buffer_copy(value), now):
            found[int(key.service)].append(LimitedClient(Address(bytes(key.client)), reason))
    return {each: tuple(sorted(clients)) for each, clients in found.items()}


def _over(limits: Limits, use: LbClientUse, now: int) -> DropReason | None:
    opened, new = limits.per_client, limits.new_per_client
    if opened and use.open >= opened.most:
        return DropReason.LB_DROP_CLIENT_OPEN
    return DropReason.LB_DROP_CLIENT_NEW if new and use.due > now + new.ahead else None
