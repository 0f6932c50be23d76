# SPDX-License-Identifier: Apache-2.0
"""Frames with an 802.1Q tag belong to the VLAN device, where the programs see them without the tag;
frames with the tag of no VLAN belong to the device itself.
"""

import pytest
from scapy.layers.l2 import Dot1AD, Dot1Q, Ether
from scapy.packet import Packet

from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import Kind, built, target_of
from tests.bpf.harness.services import client, node_port, remote_backend

pytestmark = pytest.mark.usefixtures("wired")


def tagged(packet: Packet, *tags: Packet) -> Packet:
    link = Ether(src=packet.src, dst=packet.dst)
    for tag in tags:
        link = link / tag
    return built(link / packet.payload)


@pytest.mark.parametrize(
    "tags",
    [[Dot1Q(vlan=5)], [Dot1Q(vlan=4095)], [Dot1AD(vlan=5), Dot1Q(vlan=6)]],
    ids=["a VLAN", "the last one", "two tags"],
)
def test_a_frame_of_a_vlan_passes_untouched(
    datapath: Datapath, node: Node, kind: Kind, tags: list[Packet]
):
    _, index = remote_backend(datapath, kind)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    before = datapath.snapshot()
    node.uplink.send(tagged(request, *tags))
    assert node.overlay.is_silent()
    assert datapath.snapshot() == before


def test_a_frame_that_has_only_a_priority_is_translated(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    node.uplink.send(tagged(request, Dot1Q(vlan=0, prio=3)))
    assert target_of(node.overlay.receive()) == backend
