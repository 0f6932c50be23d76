# SPDX-License-Identifier: Apache-2.0
"""Which backends connections and flows use now, from the tables of sockets and of flows.

Fast, for at a scrape there may be hundreds of thousands: 0.3 us for each.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from struct import Struct

from ebpflb.dataplane.flows.entries import FLOW_TABLES, open_flows
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.layout.enums import Direction
from ebpflb.dataplane.layout.picked import picked
from ebpflb.dataplane.layout.structs import Connection, Socket, SocketKey
from ebpflb.model.address import Protocol

# Plain numbers: an enum's member costs more to compare.
_REPLY = int(Direction.LB_DIR_REPLY)
_UDP = int(Protocol.UDP)
_NEVER = 1 << 64

_USE = Struct("=II")
_SOCKET_KEY = picked(SocketKey, cookie="Q", proto="B", direction="B")
# Backend and generation stand side by side, and are taken as one.
_SOCKET = picked(Socket, backend="8s")
_CONNECTION = picked(Connection, started="Q", backend="8s")

Use = tuple[int, int]
"""What a flow says of its backend: a place in lb_backends, and the generation of who was there."""


@dataclass(frozen=True, slots=True)
class Active:
    """flows: how many use a backend. oldest: when the first of them began, CLOCK_MONOTONIC in ns.

    UDP sockets do not say since when. entries: how many each table has, ended ones and replies too.
    """

    flows: Counter[Use] = field(default_factory=Counter)
    oldest: dict[Use, int] = field(default_factory=dict)
    entries: dict[str, int] = field(default_factory=dict)


def read_active(maps: MapSet) -> Active:
    """Each connected socket, and each flow at tc that has not ended. MapError."""
    pairs: Counter[bytes] = Counter()
    oldest: dict[bytes, int] = {}
    entries = {"lb_sockets": _add_sockets(maps["lb_sockets"], pairs)}
    entries["lb_connections"] = _add_connections(maps["lb_connections"], pairs, oldest)
    for name in FLOW_TABLES:
        entries[name] = _add_flows(maps[name], pairs, oldest)
    return Active(Counter(_by_use(pairs)), _by_use(oldest), entries)


def _by_use(found: Mapping[bytes, int]) -> dict[Use, int]:
    return {_use(pair): number for pair, number in found.items()}


def _use(pair: bytes) -> Use:
    place, generation = _USE.unpack(pair)
    return place, generation


def _add_sockets(table: BpfMap, pairs: Counter[bytes]) -> int:
    """Sockets of UDP that are connected. Records of others stay until the LRU takes them.

    Those of TCP are of connections that were there under 0.1.0.
    """
    size = 0
    unconnected: set[int] = set()
    udp: list[tuple[int, bytes]] = []
    for chunk in table.chunks():
        size += chunk.size
        keys, values = _SOCKET_KEY.iter_unpack(chunk.keys), _SOCKET.iter_unpack(chunk.values)
        for (cookie, protocol, direction), (pair,) in zip(keys, values, strict=True):
            if direction != _REPLY:
                unconnected.add(cookie)
            elif protocol == _UDP:
                udp.append((cookie, pair))
            else:
                pairs[pair] += 1
    pairs.update([pair for cookie, pair in udp if cookie not in unconnected])
    return size


def _add_connections(table: BpfMap, pairs: Counter[bytes], oldest: dict[bytes, int]) -> int:
    """TCP connections that were translated at the socket; 0: none yet, its SYN has not left."""
    size = 0
    for chunk in table.chunks():
        size += chunk.size
        opened = ((pair, began) for began, pair in _CONNECTION.iter_unpack(chunk.values) if began)
        _add(list(opened), pairs, oldest)
    return size


def _add_flows(table: BpfMap, pairs: Counter[bytes], oldest: dict[bytes, int]) -> int:
    size = 0
    for chunk in table.chunks():
        size += chunk.size
        _add(open_flows(chunk.values), pairs, oldest)
    return size


def _add(
    found: Collection[tuple[bytes, int]], pairs: Counter[bytes], oldest: dict[bytes, int]
) -> None:
    pairs.update([pair for pair, _ in found])
    for pair, began in found:
        if began < oldest.get(pair, _NEVER):
            oldest[pair] = began
