# SPDX-License-Identifier: Apache-2.0
"""Frames to a ClusterIP that must not be translated, each for a different reason."""

from functools import reduce
from operator import truediv
from typing import Any

from scapy.layers.inet import ICMP, IP, TCP, UDP
from scapy.layers.inet6 import (
    IPv6,
    IPv6ExtHdrDestOpt,
    IPv6ExtHdrFragment,
    IPv6ExtHdrRouting,
)
from scapy.layers.ipsec import AH, ESP
from scapy.layers.l2 import ARP, Dot1Q, Ether
from scapy.layers.sctp import SCTP
from scapy.packet import Packet, Raw

from tests.bpf.harness.packets import IPV4, IPV6, NODE_MAC, SENDER_MAC, built
from tests.bpf.harness.services import CLUSTER_PORT

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
    "SCTP without a chunk": ipv4() / SCTP(sport=40000, dport=CLUSTER_PORT),
    "SCTP cut off": ipv4(len=35) / SCTP(sport=40000, dport=CLUSTER_PORT) / Raw(bytes(4)),
    "IP in IP": ipv4() / IP(src=IPV4.client, dst=IPV4.cluster_ip) / UDP_HEADER,
    "AH": ipv4() / AH(nh=17) / UDP_HEADER,
    "ESP": ipv4() / ESP() / UDP_HEADER,
    "first fragment of eight bytes": ipv4(flags="MF", proto=6) / Raw(bytes(8)),
    "ports behind the end": ipv4(len=24) / UDP_HEADER,
    "options behind the end": ipv4(ihl=15, len=60, proto=17) / Raw(bytes(60)),
    "IPv4 cut off": ipv4(len=200) / UDP_HEADER,
    "IPv6 cut off": LINK / IPv6(src=IPV6.client, dst=IPV6.cluster_ip, plen=200, nh=17) / UDP_HEADER,
    "later fragment without its options": ipv4(ihl=15, len=40, frag=10, proto=17) / Raw(bytes(40)),
    "TCP header too short": ipv4() / TCP(sport=40000, dport=CLUSTER_PORT, dataofs=4),
    "TCP header behind the end": ipv6() / TCP(sport=40000, dport=CLUSTER_PORT, dataofs=15),
    "UDP shorter than its header": ipv6() / UDP(sport=40000, dport=CLUSTER_PORT, len=7),
    "UDP behind the end": ipv4() / UDP(sport=40000, dport=CLUSTER_PORT, len=500),
    "IPv6 AH": ipv6() / AH(nh=17) / UDP_HEADER,
    "nothing behind a header": ipv6() / IPv6ExtHdrDestOpt(nh=59) / Raw(bytes(20)),
    "five headers": reduce(truediv, [ipv6(), *[IPv6ExtHdrDestOpt()] * 5, UDP_HEADER]),
    "on its way": ipv6() / IPv6ExtHdrRouting(segleft=1, addresses=[IPV6.pod]) / UDP_HEADER,
    "header behind a fragment header": ipv6()
    / IPv6ExtHdrFragment(m=1)
    / IPv6ExtHdrDestOpt()
    / UDP_HEADER,
    "extension behind the end": ipv6() / IPv6ExtHdrDestOpt(len=200, nh=17) / UDP_HEADER,
    "mapped source": ipv6(source=f"::ffff:{IPV4.client}") / UDP_HEADER,
    "mapped target": ipv6(target=f"::ffff:{IPV4.cluster_ip}") / UDP_HEADER,
    "header too short": ipv4(ihl=4) / UDP_HEADER,
    "wrong version": ipv4(version=5) / UDP_HEADER,
    "IPv6 in the name of IPv4": Ether(src=SENDER_MAC, dst=NODE_MAC, type=0x0800)
    / IPv6(src=IPV6.client, dst=IPV6.cluster_ip)
    / UDP_HEADER,
}

NOT_OURS = {name: built(packet) for name, packet in _FRAMES.items()}
