# SPDX-License-Identifier: Apache-2.0
"""A pod that opens a connection, and backends that do not answer it."""

from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import (
    DescFlag,
)
from tests.bpf.harness.datapath import Datapath, Result, Verdict, flow_tuple
from tests.bpf.harness.errors import UNREACHABLE, error
from tests.bpf.harness.packets import SEQUENCE, End, Kind, target_of
from tests.bpf.harness.services import cluster_ip

RETRY = DescFlag.LB_DESC_RETRY
FIRST_PORT = 8000


def age(datapath: Datapath, source: End, frontend: End, kind: Kind) -> None:
    """Have the flow begin a second earlier."""
    created = datapath.entry(source, frontend, kind.proto).created
    datapath.write_entry(flow_tuple(source, frontend, kind.proto), created=created - 10**9)


class Opening:
    """A pod's SYNs to a ClusterIP with backends that differ by their ports."""

    def __init__(
        self, datapath: Datapath, kind: Kind, backends: int = 4, flags: int = RETRY
    ) -> None:
        self.datapath, self.kind = datapath, kind
        self.indices = [
            datapath.backend(End(kind.net.remote, FIRST_PORT + number), kind.proto)
            for number in range(backends)
        ]
        self.frontend = cluster_ip(datapath, kind, self.indices)
        datapath.flag_frontends(DescFlag(flags))
        self.pod = End(kind.net.pod, 40000)

    def syn(self) -> End:
        """Where it goes."""
        result = self.datapath.run("lb_pod_ingress", self._frame(self.pod, self.frontend, "S"))
        assert result.verdict is Verdict.PASS
        return target_of(result.packet)

    def answer(self, backend: End, flags: str, ack: int = SEQUENCE + 1) -> Result:
        packet = self._frame(backend, self.pod, flags, ack)
        return self.datapath.run("lb_pod_egress", packet)

    def refuse(self, backend: End) -> bool:
        """Whether the client sees the refusal."""
        return self.answer(backend, "RA").verdict is not Verdict.DROP

    def complain(self, backend: End, what: str = UNREACHABLE, sequence: int = SEQUENCE) -> bool:
        """Whether the client sees an ICMP error about its SYN."""
        quoted = self._frame(self.pod, backend, "S")
        quoted.payload.payload.seq = sequence
        result = self.datapath.run("lb_pod_egress", error(self.kind, backend.address, quoted))
        return result.verdict is not Verdict.DROP

    def wait(self) -> None:
        """Make the try a second older."""
        age(self.datapath, self.pod, self.frontend, self.kind)

    def unanswered(self) -> End:
        """The client repeats its SYN after a second."""
        self.wait()
        return self.syn()

    def counted(self, backend: End) -> tuple[int, int]:
        """Of a backend: its connections, and those that failed."""
        index = self.indices[backend.port - FIRST_PORT]
        found = self.datapath.all_counts("lb_count_back", index)
        return found.connections, found.failed

    def _frame(self, source: End, target: End, flags: str, ack: int = SEQUENCE + 1) -> Packet:
        return self.kind.frame(source, target, flags, payload=b"", ack=ack)
