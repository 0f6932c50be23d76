# SPDX-License-Identifier: Apache-2.0
"""Deletes what lb_sockets and lb_connections still hold of sockets that are closed.

The programs delete the entry of a connected socket when it is closed. Of an unconnected UDP socket
they do not learn to whom it has sent. Looking into all network namespaces takes a while, so that it
is done only while a table is more than half full.
"""

from collections.abc import Callable, Mapping
from sys import byteorder

from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.kernel.namespaces import visit_others
from ebpflb.dataplane.kernel.sock_diag import SockDiag
from ebpflb.errors import ProbeError
from ebpflb.model.address import Protocol

# The tables, whose keys begin with a socket's cookie, and the protocol of their sockets.
_TABLES: Mapping[str, Protocol] = {"lb_sockets": Protocol.UDP, "lb_connections": Protocol.TCP}
_COOKIE = slice(8)


class ClosedSockets:
    """A socket is listed only once it has a port, a moment after its entry was made.

    So what is deleted was of no socket in two passes.
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
        """One pass: how many entries were deleted. MapError.

        ProbeError where a namespace could not be looked into; then nothing is deleted.
        """
        return sum(self._forget(maps[name], protocol) for name, protocol in _TABLES.items())

    def _forget(self, table: BpfMap, protocol: Protocol) -> int:
        before = self._suspects.pop(table.name, set())
        # Read before the sockets are: what is not listed then is of no open socket.
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
