# SPDX-License-Identifier: Apache-2.0
"""An independent Geneve implementation that builds and reads tunnels, and Services with DSR."""

from typing import NamedTuple

from scapy.contrib.geneve import GENEVE, GeneveOptions
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.packet import Packet, Raw

from ebpflb.dataplane.layout.enums import DescFlag, DropReason
from ebpflb.dataplane.layout.structs import LbPodKey
from ebpflb.model.address import format_address
from tests.bpf.harness.datapath import SERVICE, Datapath, Result, addr
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind, built, mapped
from tests.bpf.harness.services import external_ip, local_backend, remote_backend

PORT = 6089
PEER = {IPV4: "192.0.2.2", IPV6: "2001:db8:2::2"}
OVERHEAD = {IPV4: 68, IPV6: 88}
KEY, OTHER_KEY = bytes.fromhex("0123456789abcdef"), bytes.fromhex("fedcba9876543210")
STRANGER = {"ipv4": "198.51.100.66", "ipv6": "2001:db8:100::66"}
DROPPED = {DropReason.LB_DROP_TUNNEL: 1}
_CLASS, _POD, _FIRST_PORT = 0xFF6C, 0x81, 0xC000
_PROTOCOL = {IPV4: 0x0800, IPV6: 0x86DD}


def arrive(datapath: Datapath, node: Node, frame: Packet) -> Result:
    """A frame comes in on the uplink."""
    return datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)


class Tunneled(NamedTuple):
    """A packet taken out of a tunnel: the two nodes, the pod, and the packet without a link header.

    is_returned: the pod's node sent it back.
    """

    source: str
    target: str
    pod: End
    packet: bytes
    is_returned: bool


def wrapped(  # noqa: PLR0913 - every part of a tunnel matters
    kind: Kind,
    inner: Packet,
    pod: End,
    *,
    source: str = "",
    target: str = "",
    port: int = PORT,
    option: tuple[int, int] = (_CLASS, _POD),
    control: bool = False,
    words: tuple[int, int] | None = None,
    key: bytes = KEY,
) -> Packet:
    """A frame in a tunnel from the other node to this one."""
    first, last = words or (pod.port, 0)
    value = mapped(pod.address) + first.to_bytes(2, "big") + last.to_bytes(2, "big") + key
    option_header = GeneveOptions(classid=option[0], type=option[1], data=value)
    geneve = GENEVE(
        oam=control, critical=1, proto=_PROTOCOL[kind.net], options=[option_header], vni=0
    )
    outer = kind.packet(source or PEER[kind.net], target or kind.net.node)
    udp = UDP(sport=_FIRST_PORT, dport=port, chksum=0)
    return built(outer / udp / geneve / Raw(bytes(inner.payload)))


def unwrapped(kind: Kind, frame: Packet) -> Tunneled:
    """Decapsulates a frame and asserts that its headers are correct."""
    network, udp = frame.payload, frame[UDP]
    geneve = GENEVE(bytes(udp.payload))
    assert udp.dport == PORT
    assert udp.sport >= _FIRST_PORT
    assert udp.chksum == 0
    assert udp.len == len(bytes(udp))
    assert (geneve.version, geneve.oam, geneve.critical, geneve.vni) == (0, 0, 1, 0)
    assert geneve.proto == _PROTOCOL[kind.net]
    (option,) = geneve.options
    assert (option.classid, option.type) == (_CLASS, _POD)
    assert option.data[20:] == KEY
    if kind.ip is IP:
        assert (network.flags, network.ttl, network.len) == ("DF", 64, len(bytes(network)))
        again = IP(bytes(network))
        del again.chksum
        assert IP(bytes(again)).chksum == network.chksum
    else:
        assert (network.hlim, network.plen) == (64, len(bytes(network)) - len(IPv6()))
    pod = End(format_address(option.data[:16]), int.from_bytes(option.data[16:18], "big"))
    is_returned = int.from_bytes(option.data[18:20], "big")
    assert is_returned in (0, 1)
    return Tunneled(network.src, network.dst, pod, bytes(geneve.payload), bool(is_returned))


def returned(kind: Kind, inner: Packet, pod: End) -> Packet:
    """A frame that the other node returns because it does not know the endpoint."""
    return wrapped(kind, inner, pod, words=(pod.port, 1))


def set_keys(datapath: Datapath, sent: bytes, other: bytes = b"") -> None:
    datapath.maps["lb_tunnel_keys"].update(u32(0), sent + (other or sent))


def pod_elsewhere(datapath: Datapath, kind: Kind) -> tuple[End, int]:
    """A backend on the other node, reached through tunnels; and its index."""
    pod, index = remote_backend(datapath, kind)
    datapath.maps["lb_pod_nodes"].update(mapped(pod.address), mapped(PEER[kind.net]))
    return pod, index


def pod_here(datapath: Datapath, kind: Kind, address: str = "") -> tuple[End, int]:
    """A backend on this node that tunnels may name; and its index."""
    pod, index = local_backend(datapath, kind, address)
    place_here(datapath, kind, pod, index)
    return pod, index


def place_here(
    datapath: Datapath, kind: Kind, pod: End, index: int, *, proto: int = 0, service: int = SERVICE
) -> None:
    key = LbPodKey(
        addr=addr(pod.address), port=pod.port, proto=proto or kind.proto, service=service
    )
    datapath.maps["lb_pods_here"].update(bytes(key), u32(index))


def served(datapath: Datapath, kind: Kind, index: int) -> End:
    """An external IP with DSR for one backend."""
    frontend = external_ip(datapath, kind, [index], [index])
    datapath.flag_frontends(DescFlag.LB_DESC_DSR)
    return frontend
