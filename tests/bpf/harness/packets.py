# SPDX-License-Identifier: Apache-2.0
"""Packets for tests: a small cluster's addresses in both families, frames between them, and field
by field comparison of frames.
"""

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple

from scapy.layers.inet import IP, TCP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether
from scapy.layers.sctp import SCTP, SCTPChunkInit
from scapy.packet import Packet, Raw

from ebpflb.model.address import Address, Family, Protocol, parse_address

Layer = Callable[..., Packet]

SENDER_MAC = "02:00:00:00:00:0a"
NODE_MAC = "02:00:00:00:00:01"
PAYLOAD = b"seventeen letters"
SEQUENCE = 1000


class End(NamedTuple):
    """One end of a flow."""

    address: str
    port: int


class Net(NamedTuple):
    """The cluster in one family, seen from one node.

    `pod` and `local` run on the node, `remote` on another one behind the device `overlay`, whose
    address is `overlay`; `client` is outside, behind the device `uplink` with the address `node`.
    """

    family: Family
    pod: str
    local: str
    remote: str
    cluster_ip: str
    external_ip: str
    node: str
    overlay: str
    client: str

    def __str__(self) -> str:
        return self.family.name.lower()


IPV4 = Net(
    family=Family.IPV4,
    pod="10.1.0.5",
    local="10.1.0.6",
    remote="10.2.0.7",
    cluster_ip="10.96.0.10",
    external_ip="203.0.113.10",
    node="192.0.2.1",
    overlay="172.16.0.1",
    client="198.51.100.9",
)
IPV6 = Net(
    family=Family.IPV6,
    pod="fd00:1::5",
    local="fd00:1::6",
    remote="fd00:2::7",
    cluster_ip="fd00:96::10",
    external_ip="2001:db8:113::10",
    node="2001:db8:2::1",
    overlay="fd00:16::1",
    client="2001:db8:100::9",
)


class Kind(NamedTuple):
    """A family and a protocol; most tests run with all four combinations."""

    net: Net
    proto: Protocol

    def __str__(self) -> str:
        return f"{self.net}-{self.proto.name.lower()}"

    @property
    def ip(self) -> Layer:
        """The network layer."""
        return ip_layer(self.net)

    @property
    def transport(self) -> Layer:
        """The transport layer."""
        return {Protocol.TCP: TCP, Protocol.UDP: UDP, Protocol.SCTP: SCTP}[self.proto]

    def frame(
        self,
        source: End,
        target: End,
        flags: str = "S",
        *,
        payload: bytes = PAYLOAD,
        ttl: int = 64,
        ack: int = SEQUENCE + 1,
    ) -> Packet:
        """A frame from `source` to `target` with valid checksums; flags and ack apply to TCP only.

        With SCTP it opens an association, and the payload follows the INIT.
        """
        transport = self.transport(sport=source.port, dport=target.port)
        if self.proto is Protocol.TCP:
            transport.flags, transport.seq, transport.ack = flags, SEQUENCE, ack
        elif self.proto is Protocol.SCTP:
            transport /= SCTPChunkInit(init_tag=1)
        return built(self.packet(source.address, target.address, ttl) / transport / Raw(payload))

    def packet(self, source: str, target: str, ttl: int = 64) -> Packet:
        """A frame up to its network layer."""
        limit = {"ttl": ttl} if self.ip is IP else {"hlim": ttl}
        link = Ether(src=SENDER_MAC, dst=NODE_MAC)
        return link / self.ip(src=source, dst=target, **limit)


KINDS = [Kind(net, proto) for net in (IPV4, IPV6) for proto in (Protocol.TCP, Protocol.UDP)]
TCP_KINDS = [kind for kind in KINDS if kind.proto is Protocol.TCP]
SCTP_KINDS = [Kind(net, Protocol.SCTP) for net in (IPV4, IPV6)]
UDP_KINDS = [kind for kind in KINDS if kind.proto is Protocol.UDP]


def filler(length: int) -> bytes:
    """Bytes without a pattern, the same in each run."""
    return Random(length).randbytes(length)


def ip_layer(net: Net) -> Layer:
    """The network layer of a family."""
    return IP if net.family is Family.IPV4 else IPv6


def built(packet: Packet) -> Packet:
    """The packet as it is on the wire: lengths and checksums filled in."""
    return Ether(bytes(packet))


def with_df(packet: Packet) -> Packet:
    """The packet with DF set; IPv6 never allows routers to fragment."""
    if IP in packet:
        packet[IP].flags = "DF"
        del packet[IP].chksum
    return built(packet)


def mapped(address: str) -> Address:
    """16 bytes, as in the maps."""
    return parse_address(address)


def changed(
    packet: Packet,
    *,
    source: End | None = None,
    target: End | None = None,
    hops: int = 0,
    macs: tuple[str, str] | None = None,
) -> Packet:
    """The packet with other ends, `hops` routers later, and MACs (source, destination) if given.

    scapy recomputes its checksums, except a UDP checksum of zero.
    """
    result = packet.copy()
    network, transport = result.payload, result.payload.payload
    if source:
        network.src, transport.sport = source
    if target:
        network.dst, transport.dport = target
    if macs:
        result.src, result.dst = macs
    network.setfieldval("ttl" if network.name == "IP" else "hlim", ttl_of(result) - hops)
    without_checksums(result)
    return built(result)


def without_checksums(packet: Packet) -> None:
    """Have scapy recompute the checksums, except a UDP checksum of zero."""
    if IP in packet:
        del packet[IP].chksum
    if TCP in packet:
        del packet[TCP].chksum
    elif SCTP in packet:
        del packet[SCTP].chksum
    elif packet[UDP].chksum:
        del packet[UDP].chksum


def ttl_of(packet: Packet) -> int:
    """TTL or hop limit."""
    network = packet.payload
    return int(network.ttl if network.name == "IP" else network.hlim)


def source_of(packet: Packet) -> End:
    """Where the packet comes from."""
    return End(packet.payload.src, packet.payload.payload.sport)


def target_of(packet: Packet) -> End:
    """Where the packet goes."""
    return End(packet.payload.dst, packet.payload.payload.dport)


def fields(packet: Packet) -> dict[str, Any]:
    """Every field of every layer, so that a difference between two packets is reported by name."""
    found: dict[str, Any] = {}
    layer = packet
    while layer:
        found |= {f"{layer.name}.{name}": value for name, value in layer.fields.items()}
        layer = layer.payload
    return found


def assert_same(actual: Packet, expected: Packet) -> None:
    """Compare field by field, then byte for byte."""
    assert fields(actual) == fields(expected)
    assert bytes(actual) == bytes(expected)
