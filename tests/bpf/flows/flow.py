# SPDX-License-Identifier: Apache-2.0
"""One flow through the programs, packet by packet."""

from ebpflb.dataplane.layout.enums import CtState
from ebpflb.dataplane.layout.structs import LbTuple
from tests.bpf.harness.datapath import Datapath, Verdict, flow_tuple
from tests.bpf.harness.packets import SEQUENCE, End, Kind, target_of

SYN, ACK = CtState.LB_CT_SYN, CtState.LB_CT_ACK
CLOSED, ESTABLISHED = CtState.LB_CT_CLOSED, CtState.LB_CT_ESTABLISHED


class Flow:
    """A connection of a pod to a ClusterIP with one backend, packet by packet."""

    def __init__(self, datapath: Datapath, kind: Kind, frontend: End, port: int) -> None:
        self.datapath, self.kind, self.frontend = datapath, kind, frontend
        self.pod = End(kind.net.pod, port)
        self.backend = End("", 0)

    def request(self, flags: str, ack: int = SEQUENCE + 1) -> End:
        """The pod sends a packet; returns where it goes."""
        packet = self.kind.frame(self.pod, self.frontend, flags, ack=ack)
        result = self.datapath.run("lb_pod_ingress", packet)
        assert result.verdict is Verdict.PASS
        target = target_of(result.packet)
        if flags == "S":
            self.backend = target
        return target

    def reply(self, flags: str, ack: int = SEQUENCE + 1) -> None:
        """The backend of the last SYN sends."""
        packet = self.kind.frame(self.backend, self.pod, flags, ack=ack)
        result = self.datapath.run("lb_pod_egress", packet)
        assert result.verdict is Verdict.PASS
        assert result.packet.payload.src == self.frontend.address

    def establish(self) -> None:
        """Make the handshake."""
        self.request("S")
        self.reply("SA")
        self.request("A")

    @property
    def keys(self) -> set[LbTuple]:
        """The keys of both entries."""
        return {
            flow_tuple(self.pod, self.frontend, self.kind.proto),
            flow_tuple(self.backend, self.pod, self.kind.proto),
        }

    def states(self) -> tuple[CtState, CtState]:
        """The states of the original direction and of the reply direction."""
        original = self.datapath.entry(self.pod, self.frontend, self.kind.proto)
        reply = self.datapath.entry(self.backend, self.pod, self.kind.proto)
        return CtState(original.whole_state), CtState(reply.whole_state)

    def is_established(self) -> bool:
        """Whether both entries are in lb_conntrack, and only there."""
        return self.keys <= set(self.datapath.established()) and not self.keys & set(
            self.datapath.short()
        )

    def is_short(self) -> bool:
        """Whether both entries are in lb_ct_short, and only there."""
        return self.keys <= set(self.datapath.short()) and not self.keys & set(
            self.datapath.established()
        )
