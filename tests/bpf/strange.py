# SPDX-License-Identifier: Apache-2.0
"""Frames to a ClusterIP that are none of our business, each in its own way."""

from typing import Any

from scapy.layers.inet import ICMP, IP, UDP, IPOption_NOP
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrHopByHop,
    IPv6ExtHdrRouting,
)
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Packet, Raw

from tests.bpf.packets import IPV4, IPV6, NODE_MAC, SENDER_MAC, built
from tests.bpf.services import CLUSTER_PORT

LINK = Ether(src=SENDER_MAC, dst=NODE_MAC)


def ipv4(**fields: Any) -> Packet:
    return LINK / IP(src=IPV4.client, dst=IPV4.cluster_ip, **fields)


def ipv6(source: str = IPV6.client, target: str = IPV6.cluster_ip) -> Packet:
    return LINK / IPv6(src=source, dst=target)


UDP_HEADER = UDP(sport=40000, dport=CLUSTER_PORT)
_FRAMES = {
    "ARP": LINK / ARP(hwsrc=SENDER_MAC, psrc=IPV4.client, pdst=IPV4.cluster_ip),
    "unknown ethertype": Ether(src=SENDER_MAC, dst=NODE_MAC, type=0x88B5) / Raw(bytes(60)),
    "VLAN": LINK / Dot1Q(vlan=5) / IP(src=IPV4.client, dst=IPV4.cluster_ip) / UDP_HEADER,
    "ICMP": ipv4() / ICMP(),
    "SCTP": ipv4() / SCTP(sport=40000, dport=CLUSTER_PORT),
    "IP in IP": ipv4() / IP(src=IPV4.client, dst=IPV4.cluster_ip) / UDP_HEADER,
    "first fragment": ipv4(flags="MF") / UDP_HEADER,
    "later fragment": ipv4(frag=100) / UDP_HEADER,
    "last fragment": ipv4(frag=8191) / UDP_HEADER,
    "IP options": ipv4(options=[IPOption_NOP()] * 4) / UDP_HEADER,
    "hop by hop": ipv6() / IPv6ExtHdrHopByHop() / UDP_HEADER,
    "destination options": ipv6() / IPv6ExtHdrDestOpt() / UDP_HEADER,
    "routing": ipv6() / IPv6ExtHdrRouting() / UDP_HEADER,
    "IPv6 fragment": ipv6() / IPv6ExtHdrFragment(m=1) / UDP_HEADER,
    "IPv6 atomic fragment": ipv6() / IPv6ExtHdrFragment() / UDP_HEADER,
    "mapped source": ipv6(source=f"::ffff:{IPV4.client}") / UDP_HEADER,
    "mapped target": ipv6(target=f"::ffff:{IPV4.cluster_ip}") / UDP_HEADER,
    "header too short": ipv4(ihl=4) / UDP_HEADER,
    "wrong version": ipv4(version=5) / UDP_HEADER,
    "IPv6 in the name of IPv4": Ether(src=SENDER_MAC, dst=NODE_MAC, type=0x0800)
    / IPv6(src=IPV6.client, dst=IPV6.cluster_ip)
    / UDP_HEADER,
}

NOT_OURS = {name: built(packet) for name, packet in _FRAMES.items()}
