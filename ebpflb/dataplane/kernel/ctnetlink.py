# SPDX-License-Identifier: Apache-2.0
"""The kernel's own connection tracking: the flows of this network namespace that netfilter knows.

Of each flow it reads the tuple of its replies as they arrive, before netfilter undoes its NAT. It
reads a datagram at a time, since a node may have hundreds of thousands. Where netfilter tracks
nothing it sends no request, because that alone would make the kernel load a module.
"""

import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.kernel.netlink import Netlink, attributes
from ebpflb.model.address import Address, Protocol

_NETLINK_NETFILTER = 12
# IPCTNL_MSG_CT_GET of NFNL_SUBSYS_CTNETLINK.
_CT_GET = 1 << 8 | 1
# struct nfgenmsg: all families, version 0.
_HEAD = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0)
_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")

_CTA_TUPLE_REPLY, _CTA_PROTOINFO = 2, 4
_CTA_TUPLE_IP, _CTA_TUPLE_PROTO = 1, 2
_CTA_IP_V4_SRC, _CTA_IP_V4_DST, _CTA_IP_V6_SRC, _CTA_IP_V6_DST = 1, 2, 3, 4
_CTA_PROTO_NUM, _CTA_PROTO_SRC_PORT, _CTA_PROTO_DST_PORT = 1, 2, 3
# By protocol: its part of CTA_PROTOINFO, and the states of flows that have not ended.
# TCP_CONNTRACK_SYN_SENT to LAST_ACK, SCTP_CONNTRACK_COOKIE_WAIT to SHUTDOWN_ACK_SENT.
_OPEN_STATES = {Protocol.TCP: (1, range(1, 7)), Protocol.SCTP: (3, range(2, 8))}
_STATE = 1
_MAPPED = bytes(10) + b"\xff\xff"
_ADDRESS, _PORT = 16, 2


class Reply(NamedTuple):
    """The replies of a flow on the wire."""

    protocol: int
    source: Address
    source_port: int
    destination: Address
    port: int


def replies() -> Iterator[Sequence[Reply]]:
    """The replies of every flow that has not ended, some at a time.

    OSError when the kernel refuses, or has listed only some of them.
    """
    if not _has_flows():
        return
    with Netlink(_NETLINK_NETFILTER) as netlink:
        for bodies in netlink.stream(_CT_GET, _HEAD):
            yield [reply for body in bodies if (reply := reply_of(body))]


def reply_of(body: bytes) -> Reply | None:
    """The replies of one message, unless its flow has ended or its protocol is another one."""
    flow = attributes(body, len(_HEAD))
    reply = attributes(flow.get(_CTA_TUPLE_REPLY, b""))
    ports = attributes(reply.get(_CTA_TUPLE_PROTO, b""))
    protocol = _number(ports.get(_CTA_PROTO_NUM, b""))
    if not _is_open(flow, protocol):
        return None
    ends = attributes(reply.get(_CTA_TUPLE_IP, b""))
    source = _address(ends, _CTA_IP_V4_SRC, _CTA_IP_V6_SRC)
    destination = _address(ends, _CTA_IP_V4_DST, _CTA_IP_V6_DST)
    pair = ports.get(_CTA_PROTO_SRC_PORT, b""), ports.get(_CTA_PROTO_DST_PORT, b"")
    if not source or not destination or any(len(port) != _PORT for port in pair):
        return None
    return Reply(protocol, source, _number(pair[0]), destination, _number(pair[1]))


def _has_flows() -> bool:
    try:
        return _COUNT.read_text().strip() != "0"
    except FileNotFoundError:
        return False


def _is_open(flow: dict[int, bytes], protocol: int) -> bool:
    if protocol not in _OPEN_STATES:
        return protocol == Protocol.UDP
    part, states = _OPEN_STATES[Protocol(protocol)]
    info = attributes(attributes(flow.get(_CTA_PROTOINFO, b"")).get(part, b""))
    return _number(info.get(_STATE, b"")) in states


def _address(ends: dict[int, bytes], kind4: int, kind6: int) -> Address | None:
    found = _MAPPED + ends[kind4] if kind4 in ends else ends.get(kind6, b"")
    return Address(found) if len(found) == _ADDRESS else None


def _number(payload: bytes) -> int:
    return int.from_bytes(payload, "big")
