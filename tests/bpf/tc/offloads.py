# SPDX-License-Identifier: Apache-2.0
"""Packets as virtual devices pass them on: with checksums and segmentation left to the sender."""

from scapy.layers.inet import IP, UDP, in4_pseudoheader
from scapy.layers.inet6 import IPv6, in6_pseudoheader
from scapy.packet import Packet
from scapy.utils import checksum

from tests.bpf.harness.node import Offload
from tests.bpf.harness.packets import built

_NEEDS_CHECKSUM, _TCP4_SEGMENTS, _TCP6_SEGMENTS, _DATAGRAMS = 1, 1, 4, 5


def partial(packet: Packet) -> tuple[Packet, Offload]:
    """The packet with its pseudo header's sum in place of its checksum, as on a veth."""
    packet = packet.copy()
    transport = packet.payload.payload
    if IP in packet:
        pseudo = in4_pseudoheader(packet[IP].proto, packet[IP], len(transport))
    else:
        pseudo = bytes(in6_pseudoheader(packet[IPv6].nh, packet[IPv6], len(transport)))
    transport.chksum = 0xFFFF ^ checksum(pseudo)
    start = len(packet) - len(transport)
    offset = 16 if transport.name == "TCP" else 6
    offload = Offload(flags=_NEEDS_CHECKSUM, checksum_start=start, checksum_offset=offset)
    return built(packet), offload


def segmented(packet: Packet, size: int) -> tuple[Packet, Offload]:
    """A packet that will be cut into segments, or datagrams, of this many bytes."""
    packet, offload = partial(packet)
    payload = packet.payload.payload.payload
    kind = _TCP4_SEGMENTS if IP in packet else _TCP6_SEGMENTS
    if UDP in packet:
        kind = _DATAGRAMS
    header = len(packet) - len(payload)
    return packet, offload._replace(gso_type=kind, gso_size=size, header_length=header)
