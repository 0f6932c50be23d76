# SPDX-License-Identifier: Apache-2.0
"""netfilter: Services in nftables as kube-proxy writes them, and the kernel's conntrack entries.

Packets arrive and leave by the devices of a separate node. Flows are aged by setting their
remaining time.
"""

import contextlib
import errno
import os
import select
import socket
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ebpflb.dataplane.flows.timeouts import Timeouts
from ebpflb.dataplane.kernel.netlink import Netlink, attribute, attributes
from ebpflb.model.address import Family, Protocol
from tests.bpf.harness.node import Node, Tap
from tests.bpf.harness.packets import IPV4, IPV6, Net, mapped
from tests.bpf.netfilter.ours import LANES
from tests.bpf.netfilter.script import Sent, Side
from tests.bpf.netfilter.seen import Outcome, Seen, State
from tests.bpf.netfilter.wire import Flow

_SYSCTLS = Path("/proc/sys/net/netfilter")
_NETLINK_NETFILTER = 12
_NEW, _GET, _DELETE = (1 << 8 | number for number in (0, 1, 2))
_ORIGINAL, _STATUS, _PROTOINFO, _TIMEOUT = 1, 3, 4, 7
# IPS_ASSURED: of UDP, a stream.
_ASSURED = 1 << 2
_IP, _PROTO = 1, 2
_NESTED = 0x8000
# enum tcp_conntrack, NONE to SYN_SENT2.
_TCP_STATES = (
    State.NONE,
    State.OPENING,
    State.OPENING,
    State.ESTABLISHED,
    State.CLOSING,
    State.CLOSING,
    State.CLOSED,
    State.CLOSED,
    State.CLOSED,
    State.OPENING,
)


class Netfilter:
    """netfilter on one node. Packets to pods beyond it are masqueraded."""

    def __init__(self, node: Node) -> None:
        """The node must be entered."""
        self._node = node
        self._netlink = Netlink(_NETLINK_NETFILTER)
        subprocess.run(["nft", "-f", "-"], input=_rules(), text=True, check=True)
        for net, via in ((IPV4, "192.0.2.254"), (IPV6, "2001:db8:2::fe")):
            command = ["ip", "route", "add", net.external_ip, "via", via]
            subprocess.run(command, check=True)
        values = Timeouts()
        settings = {
            "tcp_timeout_established": values.tcp_established,
            "tcp_timeout_close_wait": values.tcp_close_wait,
            "checksum": 1,
            "tcp_loose": 1,
            "tcp_be_liberal": 0,
        }
        for name, value in settings.items():
            (_SYSCTLS / f"nf_conntrack_{name}").write_text(str(value))

    def close(self) -> None:
        """Close the sockets; the kernel removes the rest with the node's namespace."""
        self._netlink.close()

    def play(self, flow: Flow, sent: Sent) -> Outcome:
        """What becomes of a packet."""
        self._device(flow, sent.side).send(flow.frame(sent))
        frames = list(_drained(self._device(flow, sent.side.other)))
        for tap in self._node.taps:
            list(_drained(tap))
        is_there = any(flow.is_delivered(sent, frame) for frame in frames)
        return Outcome.DELIVERED if is_there else Outcome.LEFT

    def _device(self, flow: Flow, side: Side) -> Tap:
        if side is Side.CLIENT:
            return self._node.uplink
        return self._node.pod if flow.backend.address == flow.kind.net.pod else self._node.overlay

    def look(self, flow: Flow, outcome: Outcome | None) -> Seen:
        """The remembered state."""
        found = self._find(flow)
        if found is None:
            return Seen(outcome)
        seconds = int.from_bytes(found.get(_TIMEOUT, b""), "big")
        return Seen(outcome, _state(flow, found), seconds)

    def age(self, flow: Flow, seconds: int) -> None:
        """Let that much time pass for a flow."""
        found = self._find(flow)
        if found is None:
            return
        rest = int.from_bytes(found.get(_TIMEOUT, b""), "big") - seconds
        key = _key(flow)
        if rest <= 0:
            self._netlink.request(_DELETE, key)
        else:
            self._netlink.request(_NEW, key + attribute(_TIMEOUT, rest.to_bytes(4, "big")))

    def forget(self) -> None:
        """Delete all flows of the node's namespace."""
        self._netlink.request(_DELETE, struct.pack("=BBH", socket.AF_UNSPEC, 0, 0))

    def _find(self, flow: Flow) -> dict[int, bytes] | None:
        try:
            (found,) = self._netlink.request(_GET, _key(flow))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise
            return None
        return attributes(found, 4)


@contextlib.contextmanager
def netfilter() -> Iterator[Netfilter]:
    """On a separate node, which is not entered."""
    with contextlib.closing(Node()) as node:
        with node.entered():
            made = Netfilter(node)
        with contextlib.closing(made):
            yield made


def _state(flow: Flow, found: dict[int, bytes]) -> State:
    if flow.kind.proto is Protocol.UDP:
        status = int.from_bytes(found[_STATUS], "big")
        return State.ESTABLISHED if status & _ASSURED else State.OPENING
    progress = attributes(attributes(found.get(_PROTOINFO, b"")).get(1, b""))
    return _TCP_STATES[progress[1][0]]


def _key(flow: Flow) -> bytes:
    """struct nfgenmsg, and the tuple of the client's packets."""
    is_ipv4 = flow.kind.net.family is Family.IPV4
    first, size = (1, 4) if is_ipv4 else (3, 16)
    ends = (flow.client, flow.frontend)
    addresses = [
        attribute(first + number, mapped(end.address)[-size:]) for number, end in enumerate(ends)
    ]
    ports = [attribute(2 + i, end.port.to_bytes(2, "big")) for i, end in enumerate(ends)]
    parts = attribute(_NESTED | _IP, b"".join(addresses))
    parts += attribute(_NESTED | _PROTO, b"".join([attribute(1, bytes([flow.kind.proto])), *ports]))
    family = socket.AF_INET if is_ipv4 else socket.AF_INET6
    return struct.pack("=BBH", family, 0, 0) + attribute(_NESTED | _ORIGINAL, parts)


def _rules() -> str:
    """A table for each family, with the nat chains of kube-proxy."""
    return "\n".join(_table(net) for net in (IPV4, IPV6))


def _table(net: Net) -> str:
    ip, address = ("ip", "{}") if net is IPV4 else ("ip6", "[{}]")
    dnat = "\n        ".join(
        f"{ip} daddr {net.external_ip} meta l4proto {{ tcp, udp }} th dport {lane.port} "
        f"dnat to {address.format(lane.backend(net).address)}:{lane.backend(net).port}"
        for lane in LANES
    )
    return f"""
table {ip} services {{
    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
        {dnat}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        {ip} daddr {net.remote} masquerade
    }}
}}
"""


def _drained(tap: Tap) -> Iterator[bytes]:
    """The frames that have left by a device."""
    while select.select([tap.fd], [], [], 0)[0]:
        with contextlib.suppress(BlockingIOError):
            yield os.read(tap.fd, 1 << 17)[10:]
