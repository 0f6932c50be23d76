# SPDX-License-Identifier: Apache-2.0
"""Flows that must survive while others fill the tables."""

from collections.abc import Callable

from tests.bpf.harness.datapath import Datapath, Verdict
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, source_of, target_of
from tests.bpf.harness.services import (
    node_port,
    remote_backend,
)

FLOWS = 20


class Held:
    """Masqueraded connections of external clients to a remote backend."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self._datapath, self._node, self._kind = datapath, node, kind
        self._backend, index = remote_backend(datapath, kind)
        self.frontend = node_port(datapath, kind, [index])
        self._sources: dict[int, End] = {}
        self.client = kind.net.client

    def request(self, port: int, flags: str) -> End:
        packet = self._kind.frame(self._client(port), self.frontend, flags)
        ifindex = self._node.uplink.ifindex
        result = self._datapath.run("lb_host_ingress", packet, ifindex=ifindex)
        assert result.verdict is Verdict.REDIRECT
        assert target_of(result.packet) == self._backend
        return source_of(result.packet)

    def reply(self, source: End, flags: str) -> End:
        packet = self._kind.frame(self._backend, source, flags)
        ifindex = self._node.overlay.ifindex
        return target_of(self._datapath.run("lb_host_ingress", packet, ifindex=ifindex).packet)

    def establish(self, port: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        source = self.request(port, "S")
        meanwhile()
        assert self.reply(source, "SA") == self._client(port)
        assert self.request(port, "A") == source
        self._sources[port] = source

    def assert_all_go_on(self) -> None:
        for port, source in self._sources.items():
            assert self.request(port, "PA") == source
            assert self.reply(source, "PA") == self._client(port)

    def _client(self, port: int) -> End:
        return End(self.client, port)


class UdpSessions:
    """External UDP clients that got a reply from one of many remote backends."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self._datapath, self._node, self._kind = datapath, node, kind
        ends = [End(kind.net.remote, 8000 + number) for number in range(20)]
        backends = [datapath.backend(end, kind.proto) for end in ends]
        self.frontend = node_port(datapath, kind, backends)
        self._sessions = {port: self._request(port) for port in range(50_000, 50_000 + FLOWS)}
        for port, (backend, source) in self._sessions.items():
            assert self._reply(backend, source) == End(kind.net.client, port)

    def become_streams(self) -> None:
        for key in self._datapath.short():
            if key.proto == self._kind.proto:
                self._datapath.write_entry(key, created=1)
        self.assert_all_go_on()

    def assert_all_go_on(self) -> None:
        for port, session in self._sessions.items():
            assert self._request(port) == session
            assert self._reply(*session) == End(self._kind.net.client, port)

    def _request(self, port: int) -> tuple[End, End]:
        packet = self._kind.frame(End(self._kind.net.client, port), self.frontend)
        ifindex = self._node.uplink.ifindex
        result = self._datapath.run("lb_host_ingress", packet, ifindex=ifindex)
        return target_of(result.packet), source_of(result.packet)

    def _reply(self, backend: End, source: End) -> End:
        packet = self._kind.frame(backend, source)
        ifindex = self._node.overlay.ifindex
        return target_of(self._datapath.run("lb_host_ingress", packet, ifindex=ifindex).packet)
