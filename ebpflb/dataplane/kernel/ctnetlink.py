# SPDX-License-Identifier: Apache-2.0
"""The kernel's own connection tracking: which flows netfilter knows in this network namespace.

Of each flow the tuple of its replies as they arrive, before netfilter undoes what it has done to
the requests. Read a datagram at a time: a node may have hundreds of thousands. Nothing is asked
where netfilter tracks nothing, because the question alone would have the kernel load a module.
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
# By protocol: its part of CTA_PROTOINFO, and the states of what has not ended.
# TCP_CONNTRACK_SYN_SENT to LAST_ACK, SCTP_CONNTRACK_COOKIE_WAIT to SHUTDOWN_ACK_SENT.
_LIVING = {Protocol.TCP: (1, range(1, 7)), Protocol.SCTP: (3, range(2, 8))}
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
    """Those of every flow that has not ended, some at a time.

    OSError: the kernel does not tell, or it has told of some only.
    """
    if not _is_in_use():
        return
    with Netlink(_NETLINK_NETFILTER) as netlink:
        for bodies in netlink.stream(_CT_GET, _HEAD):
            yield [reply for body in bodies if (reply := reply_of(body))]


def reply_of(body: bytes) -> Reply | None:
    """What one message says, unless its flow has ended or its protocol is another one."""
    flow = attributes(body, len(_HEAD))
    reply = attributes(flow.get(_CTA_TUPLE_REPLY, b""))
    ports = attributes(reply.get(_CTA_TUPLE_PROTO, b""))
    protocol = _number(ports.get(_CTA_PROTO_NUM, b""))
    if not _lives(flow, protocol):
        return None
    ends = attributes(reply.get(_CTA_TUPLE_IP, b""))
    source = _address(ends, _CTA_IP_V4_SRC, _CTA_IP_V6_SRC)
    destination = _address(ends, _CTA_IP_V4_DST, _CTA_IP_V6_DST)
    pair = ports.get(_CTA_PROTO_SRC_PORT, b""), ports.get(_CTA_PROTO_DST_PORT, b"")
    if not source or not destination or any(len(port) != _PORT for port in pair):
        return None
    return Reply(protocol, source, _number(pair[0]), destination, _number(pair[1]))


def _is_in_use() -> bool:
    try:
        return _COUNT.read_text().strip() != "0"
    except FileNotFoundError:
        return False


def _lives(flow: dict[int, bytes], protocol: int) -> bool:
    if protocol not in _LIVING:
        return protocol == Protocol.UDP
    part, states = _LIVING[Protocol(protocol)]
    info = attributes(attributes(flow.get(_CTA_PROTOINFO, b"")).get(part, b""))
    return _number(info.get(_STATE, b"")) in states


def _address(ends: dict[int, bytes], kind4: int, kind6: int) -> Address | None:
    found = _MAPPED + ends[kind4] if kind4 in ends else ends.get(kind6, b"")
    return Address(found) if len(found) == _ADDRESS else None


def _number(payload: bytes) -> int:
    return int.from_bytes(payload, "big")
