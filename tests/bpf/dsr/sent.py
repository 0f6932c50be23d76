# SPDX-License-Identifier: Apache-2.0
"""What the client's node sends in tunnels."""

from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import SchedulerCode
from ebpflb.dataplane.layout.structs import LbDesc
from tests.bpf.dsr.tunnel import PEER, unwrapped
from tests.bpf.harness.datapath import Datapath, Result, Verdict
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind

# What a client sends until its flow is open here, and until it counts as established.
OPENING, LASTING = ("S", "A"), ("S", "A", "PA", "A")


def assert_sent(kind: Kind, result: Result, frame: Packet, to: End) -> None:
    """The packet is sent unchanged to the other node, for a pod."""
    assert result.verdict is Verdict.REDIRECT
    found = unwrapped(kind, result.packet)
    assert (found.source, found.target) == (kind.net.node, PEER[kind.net])
    assert (found.pod, found.is_returned) == (to, False)
    assert found.packet == bytes(frame.payload)


def hashed(
    datapath: Datapath, scheduler: SchedulerCode, others: list[int], affinity: int = 0
) -> None:
    """Give the only frontend a hash scheduler over the same backends."""
    value = LbDesc.from_buffer_copy(datapath.maps["lb_descs"].lookup(u32(1)) or b"")
    value.scheduler, value.affinity_timeout = scheduler, affinity
    value.others.table = len(others)
    base = value.others.base + value.others.count
    datapath.maps["lb_slots"].update_batch(
        [(u32(base + place), u32(each)) for place, each in enumerate(others)]
    )
    datapath.maps["lb_descs"].update(u32(1), bytes(value))
