# SPDX-License-Identifier: Apache-2.0
"""Corrects lb_client_uses, where the programs count the open connections of clients with a limit.

As lb_open: see open_connections.py. Only clients that are there are corrected; one that was evicted
begins anew.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from sys import byteorder

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, KEY_SIZE, addresses_of
from ebpflb.dataplane.flows.open_connections import step_towards
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction, Hook
from ebpflb.dataplane.layout.structs import (
    LbAddr,
    LbClientKey,
    LbClientUse,
    LbConntrack,
    LbLimit,
    packed_format,
)
from ebpflb.model.address import Address, Family, family_of

_FLOW = packed_format(LbConntrack, "service", "direction", "hook", "state", "flags", "other_state")
# Plain ints: enum members are slower to compare.
_ORIGINAL, _CLOSED = int(Direction.LB_DIR_ORIGINAL), int(CtState.LB_CT_CLOSED)
_PEER_FIN, _DSR = int(CtState.LB_CT_OTHER_FIN), int(CtFlag.LB_CT_DSR)
_TUNNELED, _OF_NODE = int(CtFlag.LB_CT_TUNNELED), int(Hook.LB_HOOK_HOST_EGRESS)

Uses = Mapping[bytes, int]
"""By key of lb_client_uses: how many flows are open."""


def correct_client_uses(
    maps: MapSet, count: Callable[[MapSet, Set[int]], Uses] | None = None
) -> int:
    """One step, for the Services that limit these counts. MapError.

    Returns how many counts were changed. What a client opens between a lookup and an update here is
    not counted, until the next step.
    """
    services = _limited(maps["lb_limits"])
    if not services:
        return 0
    clients = maps["lb_client_uses"]
    before = {key: use.open for key, use in _clients(clients, services)}
    uses = (count or count_flows)(maps, services)
    changed = 0
    for key, opened in before.items():
        if value := clients.lookup(key):
            use = LbClientUse.from_buffer_copy(value)
            if step := step_towards(uses.get(key, 0), opened, use.open):
                use.open += step
                clients.update(key, bytes(use))
                changed += 1
    return changed


def count_flows(maps: MapSet, services: Set[int]) -> Uses:
    """The open flows of clients of these Services. MapError."""
    found: Counter[bytes] = Counter()
    for name in FLOW_TABLES:
        for chunk in maps[name].chunks():
            for at, (service, *flow) in enumerate(_FLOW.iter_unpack(chunk.values)):
                if service in services and _is_open(*flow):
                    client, _ = addresses_of(chunk.keys[at * KEY_SIZE : (at + 1) * KEY_SIZE])
                    found[client_key(service, client, Hook(flow[1]))] += 1
    return found


def client_key(service: int, client: Address, hook: Hook) -> bytes:
    """struct lb_client_key of a client whose packets come to this hook."""
    return bytes(LbClientKey(service=service, client=LbAddr.of(_one_client(client, hook))))


def _one_client(address: Address, hook: Hook) -> Address:
    """lb_client_fill(): what several addresses of one client have in common."""
    is_ipv6 = family_of(address) is Family.IPV6
    if hook is Hook.LB_HOOK_HOST_EGRESS:
        return Address(bytes(16) if is_ipv6 else address[:12] + bytes(4))
    is_outside = hook is Hook.LB_HOOK_HOST_INGRESS
    return Address(address[:8] + bytes(8)) if is_ipv6 and is_outside else address


def _is_open(direction: int, hook: int, state: int, flags: int, other_state: int) -> bool:
    """Whether it is a flow of a client that lb_limit_begin() counts, and has not ended."""
    return (
        direction == _ORIGINAL
        and hook != _OF_NODE
        and not flags & _TUNNELED
        and not (state | other_state) & _CLOSED
        and not (flags & _DSR and state & _PEER_FIN)
    )


def _limited(limits: BpfMap) -> Set[int]:
    return {
        int.from_bytes(key, byteorder)
        for key, value in limits.items()
        if LbLimit.from_buffer_copy(value).client_open
    }


def _clients(clients: BpfMap, services: Set[int]) -> Iterator[tuple[bytes, LbClientUse]]:
    for key, value in clients.items():
        if LbClientKey.from_buffer_copy(key).service in services:
            yield key, LbClientUse.from_buffer_copy(value)
