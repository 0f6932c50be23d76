# SPDX-License-Identifier: Apache-2.0
"""External clients whose packets are masqueraded."""

from scapy.packet import Packet

from tests.bpf.harness.datapath import Datapath, Result, Verdict
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, source_of
from tests.bpf.harness.services import node_addresses, node_port, remote_backend


class Outside:
    """Clients that reach one remote backend through a NodePort."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self.datapath, self.node, self.kind = datapath, node, kind
        node_addresses(datapath, node)
        self.backend, index = remote_backend(datapath, kind)
        self.frontend = node_port(datapath, kind, [index])

    def client(self, port: int) -> End:
        return End(self.kind.net.client, port)

    def send(self, port: int, flags: str = "S") -> Result:
        """A packet of the client with this port."""
        request = self.kind.frame(self.client(port), self.frontend, flags)
        return self.datapath.run("lb_host_ingress", request, ifindex=self.node.uplink.ifindex)

    def source(self, port: int, flags: str = "S") -> End:
        """The source address and port that its packets are masqueraded with."""
        result = self.send(port, flags)
        assert result.verdict is Verdict.REDIRECT
        return source_of(result.packet)

    def reply(self, source: End, flags: str) -> Packet:
        """The backend replies; returns what leaves for the client."""
        packet = self.kind.frame(self.backend, source, flags)
        ifindex = self.node.overlay.ifindex
        return self.datapath.run("lb_host_ingress", packet, ifindex=ifindex).packet

    def run_to_its_end(self, port: int) -> End:
        """A complete connection; returns its masqueraded source."""
        source = self.source(port)
        self.reply(source, "SA")
        self.source(port, "A")
        self.source(port, "FA")
        self.reply(source, "FA")
        self.source(port, "A")
        return source

    def reply_goes_to(self, source: End) -> int:
        """The client that the backend's reply reaches."""
        return int(self.reply(source, "A").payload.payload.dport)
