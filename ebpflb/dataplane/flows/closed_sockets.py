# SPDX-License-Identifier: Apache-2.0
"""Deletes entries of closed sockets from lb_sockets and lb_connections.

The programs delete the entry of a connected socket when it is closed, and those for the frontend to
which an unconnected UDP socket has sent last. Visiting all network namespaces takes a while, so it
is done only while a table is more than half full.
"""

from collections.abc import Callable, Mapping
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.kernel.namespaces import visit_others
from ebpflb.dataplane.kernel.sock_diag import SockDiag
from ebpflb.errors import ProbeError
from ebpflb.model.address import Protocol

# The tables, whose keys start with a socket's cookie, and the protocol of their sockets.
_TABLES: Mapping[str, Protocol] = {"lb_sockets": Protocol.UDP, "lb_connections": Protocol.TCP}
_COOKIE = slice(8)


class ClosedSockets:
    """A socket is listed only once it has a port, a moment after its entry was made.

    So an entry is deleted only if two passes did not find its socket.
    """

    def __init__(
        self,
        *,
        diag: Callable[[], SockDiag] = SockDiag,
        visit: Callable[[Callable[[], bool]], None] = visit_others,
    ) -> None:
        """`diag` and `visit` are for tests."""
        self._diag = diag
        self._visit = visit
        self._suspects: dict[str, set[bytes]] = {}

    def forget(self, maps: MapSet) -> int:
        """One pass; returns how many entries were deleted. MapError.

        ProbeError if a namespace could not be visited; then nothing is deleted.
        """
        return sum(self._forget(maps[name], protocol) for name, protocol in _TABLES.items())

    def _forget(self, table: BpfMap, protocol: Protocol) -> int:
        before = self._suspects.pop(table.name, set())
        # Read before the sockets: an entry whose socket is not listed then has no open socket.
        keys = [key for key, _ in table.items()]
        if len(keys) <= table.max_entries // 2:
            return 0
        try:
            there = self._cookies(protocol)
        except OSError as error:
            raise ProbeError(f"cannot look for closed sockets: {error}") from error
        closed = {key for key in keys if int.from_bytes(key[_COOKIE], byteorder) not in there}
        gone = list(closed & before)
        table.delete_batch(gone)
        self._suspects[table.name] = closed - before
        return len(gone)

    def _cookies(self, protocol: Protocol) -> set[int]:
        found: set[int] = set()

        def look() -> bool:
            with self._diag() as diag:
                found.update(diag.cookies(protocol))
            return False

        look()
        self._visit(look)
        return found
