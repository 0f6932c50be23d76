# SPDX-License-Identifier: Apache-2.0
"""Destroys connected UDP sockets whose backend has stopped serving.

The backend of such a socket was chosen once, at connect(). When the socket is destroyed, its
process gets an error, reconnects and gets a serving backend. lb_sockets has the sockets that the
hooks translated, and their backends; other sockets and all TCP sockets are left alone.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.namespaces import visit_others
from ebpflb.dataplane.kernel.sock_diag import SockDiag
from ebpflb.dataplane.layout.enums import Direction
from ebpflb.dataplane.layout.records import SERVING, USABLE, BackendRecord, pack_index
from ebpflb.dataplane.layout.structs import LbSocket, LbSocketKey, packed_format
from ebpflb.errors import ProbeError
from ebpflb.model.address import Address, Family, Protocol, family_of

_KEY = packed_format(LbSocketKey)
_VALUE = packed_format(LbSocket, "backend", "serial")


class Ended(NamedTuple):
    """How many sockets were closed, and whether there may be more in a moment."""

    sockets: Mapping[Family, int]
    pending: bool


class _Peer(NamedTuple):
    """The address and port that a socket is connected to."""

    cookie: int
    address: Address
    port: int


class StaleSockets:
    """Closes those of this namespace and of all others that have a name or a process.

    A record may outlive its socket, or exist a moment before it is connected. So two passes
    look for the socket of each record, and no more.
    """

    def __init__(
        self,
        maps: MapSet,
        *,
        diag: Callable[[], SockDiag] = SockDiag,
        visit: Callable[[Callable[[], bool]], None] = visit_others,
    ) -> None:
        """`diag` and `visit` are for tests."""
        self._maps = maps
        self._diag = diag
        self._visit = visit
        self._seen: set[bytes] = set()
        self._settled: set[bytes] = set()

    def end(self) -> Ended:
        """One pass. MapError, or ProbeError if a namespace could not be visited."""
        stale = dict(self._stale())
        wanted = {peer for record, peer in stale.items() if record not in self._settled}
        ended: Counter[Family] = Counter()
        try:
            self._end_in_all(wanted, ended)
        except OSError as error:
            raise ProbeError(f"cannot close stale UDP sockets: {error}") from error
        self._settled = (self._settled | self._seen) & stale.keys()
        self._seen = set(stale)
        return Ended(ended, bool(stale.keys() - self._settled))

    def _stale(self) -> Iterator[tuple[bytes, _Peer]]:
        """The records of UDP sockets whose backend no longer serves."""
        serves: dict[tuple[int, int], bool] = {}
        for key, value in self._maps["lb_sockets"].items():
            cookie, address, port, protocol, direction = _KEY.unpack(key)
            if protocol != Protocol.UDP or direction != Direction.LB_DIR_REPLY:
                continue
            backend = _VALUE.unpack(value)
            if backend not in serves:
                serves[backend] = self._serves(*backend)
            if not serves[backend]:
                peer = _Peer(cookie, Address(address), int.from_bytes(port, "big"))
                yield key + value, peer

    def _serves(self, index: int, serial: int) -> bool:
        value = self._maps["lb_backends"].lookup(pack_index(index))
        if value is None:
            return False
        record = BackendRecord.unpack(value)
        return record.serial == serial and bool(record.flags & (USABLE | SERVING))

    def _end_in_all(self, wanted: set[_Peer], ended: Counter[Family]) -> None:
        """First in this namespace, then, for sockets not found here, in all others."""

        def end_here() -> bool:
            with self._diag() as diag:
                found = _end(diag, wanted)
            wanted.difference_update(found)
            ended.update(family_of(peer.address) for peer in found)
            return not wanted

        if wanted and not end_here():
            self._visit(end_here)


def _end(diag: SockDiag, wanted: Collection[_Peer]) -> list[_Peer]:
    """Close the wanted sockets of the namespace; returns those that were there."""
    found = []
    for each in diag.connected():
        peer = _Peer(each.cookie, each.peer, each.port)
        if peer in wanted and diag.destroy(each):
            found.append(peer)
    return found
