# SPDX-License-Identifier: Apache-2.0
"""The maps of a node with open connections, and its sockets."""

from ebpflb.dataplane.kernel.sock_diag import OpenSocket, TcpProgress
from ebpflb.dataplane.layout.enums import CtState, Direction, Hook
from ebpflb.dataplane.layout.structs import LbConnection, LbConntrack, LbSocket, LbSocketKey
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import Protocol, parse_address
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend, named
from tests.unit.dataplane.explain.node import addr, tuple_of

VIP, SERVING, GONE = "10.96.0.1", "10.1.0.1", "10.1.0.2"
POD = "10.1.0.9"
ESTABLISHED, FIN_WAIT2 = 1, 5
# CLOCK_MONOTONIC, ns.
NOW = 10**15
PROGRESS = TcpProgress(ESTABLISHED, 4, 5, 6)


class Opened:
    """The maps of a node that serves default/web, and its sockets."""

    def __init__(self) -> None:
        self.maps = memory_maps()
        web = frontend(VIP, backends(SERVING), service=named("web", "http"))
        Sync(self.maps, quiesce=lambda: None).resync(by_service(web))
        (raw,) = [key for key, _ in self.maps["lb_names"].items()]
        self.service = int.from_bytes(raw, "little")
        self.sockets: dict[Protocol, dict[int, OpenSocket]] = {Protocol.TCP: {}, Protocol.UDP: {}}

    def tcp(self, cookie, backend=SERVING, *, age=10, progress=PROGRESS):
        """A socket; without progress it is closed meanwhile."""
        record = LbConnection(
            started=NOW - age * 10**9,
            addr=addr(VIP),
            port=80,
            service=self.service,
            backend_addr=addr(backend),
            backend_port=8080,
        )
        self.maps["lb_connections"].update(cookie.to_bytes(8, "little"), bytes(record))
        if progress:
            found = OpenSocket(cookie, parse_address(POD), 4000 + cookie, progress)
            self.sockets[Protocol.TCP][cookie] = found

    def udp(self, cookie):
        key = LbSocketKey(cookie=cookie, peer=addr(SERVING), port=53, proto=Protocol.UDP)
        key.direction = Direction.LB_DIR_REPLY
        value = LbSocket(peer=addr(VIP), port=53, service=self.service)
        self.maps["lb_sockets"].update(bytes(key), bytes(value))
        self.sockets[Protocol.UDP][cookie] = OpenSocket(cookie, parse_address(POD), 5000)

    def flow(self, state=CtState.LB_CT_ESTABLISHED, hook=Hook.LB_HOOK_HOST_INGRESS, *, age=20):
        """At tc, by a client outside; its last packet was a reply."""
        entry = LbConntrack(
            to=tuple_of("192.0.2.1", 30000, SERVING, 8080),
            direction=Direction.LB_DIR_ORIGINAL,
            hook=hook,
            state=state,
            service=self.service,
            created=NOW - age * 10**9,
            last_seen=NOW - 9 * 10**9,
            bytes=100,
        )
        key = tuple_of("198.51.100.7", 1234, VIP, 80)
        reply = LbConntrack(to=tuple_of(VIP, 80, "198.51.100.7", 1234), bytes=2000)
        reply.direction, reply.last_seen = Direction.LB_DIR_REPLY, NOW - 3 * 10**9
        table = self.maps["lb_conntrack"]
        table.update(bytes(key), bytes(entry))
        table.update(bytes(tuple_of(SERVING, 8080, "192.0.2.1", 30000)), bytes(reply))
