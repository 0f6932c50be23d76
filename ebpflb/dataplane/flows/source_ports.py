# SPDX-License-Identifier: Apache-2.0
"""Which source ports masqueraded flows may use, and which of them other NAT on the node uses.

netfilter masquerades as well: kube-proxy's connections while it is being replaced, and the CNI's.
If a flow of ebpflb used the same port to the same pod, its conntrack entry would match the replies
of both. So the tuples of other NAT are reserved in the conntrack maps, as entries that no hook
uses: the port is taken, but the packets pass unchanged. The same holds for a process of the node
that connected to a pod from such a port.

The kernel's own connection tracking knows these connections. It is read periodically, more seldom
while there are none, and only its answer ends a reservation.
"""

import logging
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from errno import E2BIG, EEXIST
from pathlib import Path
from sys import byteorder
from time import monotonic

from ebpflb.config.values import FEWEST_SNAT_PORTS
from ebpflb.dataplane.flows.conntrack import KEY_SIZE, flow_key
from ebpflb.dataplane.kernel.ctnetlink import Reply, replies
from ebpflb.dataplane.kernel.maps import BpfMap, Chunk, MapSet
from ebpflb.dataplane.kernel.uapi import Exist
from ebpflb.dataplane.layout.enums import CtState, Direction, Hook
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.errors import MapError
from ebpflb.log import fields
from ebpflb.model.address import Address, Protocol

_log = logging.getLogger("ebpflb.dataplane")

Ports = tuple[int, int]
"""The first and the last port."""

_FIRST, _LAST = 1024, 65535
_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")

PERIOD_SECONDS = 60.0
# While nothing is reserved.
IDLE_PERIOD_SECONDS = 600.0

# Entries of a table, and connections, that one step looks at: a few milliseconds each.
_CHUNK, _STEP = 8192, 512
_HOOK, _LAST_SEEN = LbConntrack.hook.offset, LbConntrack.last_seen.offset
# A time that no timeout reaches: neither expiry nor a new flow ends a reservation. Reservations
# made by the programs have a real time, and expire (bpf/own_udp.h).
_FOR_EVER = 1 << 62
_FOR_EVER_BYTES = _FOR_EVER.to_bytes(8, byteorder)
_VALUES = {
    protocol: bytes(
        LbConntrack(
            last_seen=_FOR_EVER,
            direction=Direction.LB_DIR_REPLY,
            hook=Hook.LB_HOOK_RESERVED,
            state=state,
        )
    )
    for protocol, state in (
        (Protocol.TCP, CtState.LB_CT_ESTABLISHED),
        (Protocol.SCTP, CtState.LB_CT_ESTABLISHED),
        (Protocol.UDP, CtState.LB_CT_ESTABLISHED),
    )
}


def own_ports(node_ports: Ports) -> tuple[Ports, Ports]:
    """The source ports that the programs use for SNAT: no NodePorts.

    If nearly all others are ephemeral ports for sockets, both use the same ones (`are_shared()`).
    """
    taken = [node_ports] if are_shared(node_ports) else [local_ports(), node_ports]
    one, two = snat_ports(*taken)
    return one, two


def are_shared(node_ports: Ports) -> bool:
    """Whether sockets use the same ports: then programs ask for one before they use a port."""
    found = snat_ports(local_ports(), node_ports)
    return sum(last - first + 1 for first, last in found) < FEWEST_SNAT_PORTS


def local_ports() -> Ports:
    """The ephemeral ports of this network namespace."""
    first, last = _LOCAL_PORTS.read_text().split()
    return int(first), int(last)


def snat_ports(*taken: Ports) -> list[Ports]:
    """The two largest ranges of unprivileged ports outside `taken`, in order.

    By default 1024-29999 and 61000-65535. If only one range is left, it is split in half; there
    may be none.
    """
    free = sorted(_gaps(sorted(taken)), key=lambda ports: ports[0] - ports[1])[:2]
    if len(free) == 1:
        first, last = free[0]
        middle = (first + last) // 2
        free = [(first, middle), (middle + 1, last)]
    return sorted(free)


def _gaps(taken: list[Ports]) -> list[Ports]:
    gaps, start = [], _FIRST
    for first, last in taken:
        if first > start:
            gaps.append((start, first - 1))
        start = max(start, last + 1)
    return [*gaps, (start, _LAST)] if start <= _LAST else gaps


class Reservations:
    """The ports of other NAT that are reserved in one set of maps."""

    def __init__(
        self,
        maps: MapSet,
        node_ports: Ports,
        *,
        connections: Callable[[], Iterator[Sequence[Reply]]] = replies,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """`connections`: raises OSError if the list is incomplete. `clock`: seconds."""
        # Entries here are never evicted, but flows may also be elsewhere.
        self._udp = maps["lb_ct_stream"], maps["lb_ct_udp"]
        self._others = maps["lb_conntrack"], maps["lb_ct_short"]
        self._node_ports = node_ports
        self._connections = connections
        self._clock = clock
        self._pass: Iterator[None] | None = None
        self._due: float | None = None
        self._failure = ""
        self._left_out = 0

    def renew(self, addresses: Container[Address]) -> None:
        """Check all connections of these node addresses at once. MapError."""
        for _ in self._look(addresses):
            pass

    def step(self, addresses: Container[Address]) -> bool:
        """Check some if it is time to; returns whether there are more. MapError."""
        if self._pass is None and (self._due is None or self._clock() < self._due):
            return False
        current, self._pass = self._pass or self._look(addresses), None
        for _ in current:
            self._pass = current
            return True
        return False

    def _look(self, addresses: Container[Address]) -> Iterator[None]:
        self._due = self._clock() + PERIOD_SECONDS
        udp, others = _Table(*self._udp), _Table(*self._others)
        tables = {Protocol.UDP: udp, Protocol.TCP: others, Protocol.SCTP: others}
        for table in (udp, others):
            yield from table.read()
        try:
            yield from self._keep_living(tables, addresses)
        except OSError as error:
            self._note_failure(error.strerror or str(error))
            return
        self._note_failure("")
        udp.forget_others()
        others.forget_others()
        if not udp.kept and not others.kept:
            self._due = self._clock() + IDLE_PERIOD_SECONDS
        self._note_made((udp, others))

    def _keep_living(
        self, tables: Mapping[Protocol, "_Table"], addresses: Container[Address]
    ) -> Iterator[None]:
        ports = own_ports(self._node_ports)
        seen = 0
        for some in self._connections():
            for protocol, key in _in_the_way(some, addresses, ports):
                tables[protocol].keep(key, _VALUES[protocol])
            seen += len(some)
            if seen >= _STEP:
                seen = 0
                yield

    def _note_failure(self, failure: str) -> None:
        if failure and failure != self._failure:
            _log.warning(
                "cannot list the source ports of other NAT, some may be used twice: %s", failure
            )
        self._failure = failure

    def _note_made(self, tables: Collection["_Table"]) -> None:
        added, left_out = sum(each.added for each in tables), sum(each.left_out for each in tables)
        if added:
            _log.info("source ports of other NAT reserved", extra=fields(connections=added))
        if left_out and not self._left_out:
            _log.warning(
                "no room to reserve all source ports of other NAT, some may be used twice",
                extra=fields(left_out=left_out),
            )
        self._left_out = left_out


class _Table:
    """One table during a pass over connections."""

    def __init__(self, entries: BpfMap, opening: BpfMap) -> None:
        self._entries = entries
        self._opening = opening
        # Half of the table, because flows come first.
        self._room = entries.max_entries // 2
        self._before: set[bytes] = set()
        self.kept: set[bytes] = set()
        self.added = 0
        self.left_out = 0

    def read(self) -> Iterator[None]:
        """Read the existing entries."""
        for chunk in self._entries.chunks(_CHUNK):
            self._room -= chunk.size
            self._before.update(_reserved(chunk, self._entries.value_size))
            yield

    def keep(self, key: bytes, value: bytes) -> None:
        """Reserve a tuple or keep it reserved, unless a flow of ours has it or room is short."""
        if key in self._before:
            self.kept.add(key)
        elif key in self.kept or self._opening.lookup(key) is not None:
            return
        elif self._room <= 0:
            self.left_out += 1
        elif _insert(self._entries, key, value):
            self._room -= 1
            self.added += 1
            self.kept.add(key)

    def forget_others(self) -> None:
        """Delete the reservations that were not kept."""
        self._entries.delete_batch(list(self._before - self.kept))


def _in_the_way(
    some: Sequence[Reply], addresses: Container[Address], ports: Sequence[Ports]
) -> Iterator[tuple[Protocol, bytes]]:
    """The keys of replies that arrive where replies to our masqueraded flows may arrive."""
    for each in some:
        if each.destination in addresses and any(a <= each.port <= b for a, b in ports):
            source, destination = (each.source, each.source_port), (each.destination, each.port)
            protocol = Protocol(each.protocol)
            yield protocol, flow_key(source, destination, protocol)


def _reserved(chunk: Chunk, value_size: int) -> Iterator[bytes]:
    """The keys of the reservations for other NAT; there are few."""
    hooks = chunk.values[_HOOK::value_size]
    at = hooks.find(Hook.LB_HOOK_RESERVED)
    while at >= 0:
        if chunk.values.startswith(_FOR_EVER_BYTES, at * value_size + _LAST_SEEN):
            yield chunk.keys[at * KEY_SIZE : (at + 1) * KEY_SIZE]
        at = hooks.find(Hook.LB_HOOK_RESERVED, at + 1)


def _insert(entries: BpfMap, key: bytes, value: bytes) -> bool:
    """Whether it is there now; False if a flow has the key or the table is full."""
    try:
        entries.update(key, value, exist=Exist.NO)
    except MapError as error:
        if error.errno not in (EEXIST, E2BIG):
            raise
        return False
    return True
