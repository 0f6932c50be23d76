# SPDX-License-Identifier: Apache-2.0
"""The kernel's own connection tracking: the flows that netfilter knows in this network namespace.

For each flow it reads the tuple of its replies as they arrive, before netfilter undoes its NAT. It
reads one datagram at a time, since a node may have hundreds of thousands of flows. If netfilter
tracks nothing, it sends no request, because that alone would make the kernel load a module.

It also registers flows that bypass netfilter, so that netfilter's NAT chooses other ports.
"""

import errno
import socket
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.kernel.netfilter import NETLINK_NETFILTER, nft_head
from ebpflb.dataplane.kernel.netlink import Netlink, attribute, attributes
from ebpflb.model.address import Address, Family, Protocol, address_of, family_of

# IPCTNL_MSG_CT_GET of NFNL_SUBSYS_CTNETLINK.
_CT_GET = 1 << 8 | 1
# IPCTNL_MSG_CT_NEW.
_CT_NEW = 1 << 8
_HEAD = nft_head(socket.AF_UNSPEC)
_COUNT = Path("/proc/sys/net/netfilter/nf_conntrack_count")

_CTA_TUPLE_ORIG, _CTA_TUPLE_REPLY, _CTA_STATUS, _CTA_PROTOINFO, _CTA_TIMEOUT = 1, 2, 3, 4, 7
_CTA_TUPLE_IP, _CTA_TUPLE_PROTO = 1, 2
_CTA_IP_V4_SRC, _CTA_IP_V4_DST, _CTA_IP_V6_SRC, _CTA_IP_V6_DST = 1, 2, 3, 4
_CTA_PROTO_NUM, _CTA_PROTO_SRC_PORT, _CTA_PROTO_DST_PORT = 1, 2, 3
# By protocol: its attribute in CTA_PROTOINFO, and the states of flows that have not ended.
# TCP_CONNTRACK_SYN_SENT to LAST_ACK, SCTP_CONNTRACK_COOKIE_WAIT to SHUTDOWN_ACK_SENT.
_OPEN_STATES = {Protocol.TCP: (1, range(1, 7)), Protocol.SCTP: (3, range(2, 8))}
_STATE = 1
# IPS_SEEN_REPLY, IPS_ASSURED and IPS_CONFIRMED: not dropped first when the table is full.
_ASSURED = 0xE
_ESTABLISHED = 3
_ADDRESS, _IPV4, _PORT = 16, 4, 2
_NESTED = 0x8000


class Reply(NamedTuple):
    """The replies of a flow on the wire."""

    protocol: int
    source: Address
    source_port: int
    destination: Address
    port: int


def replies() -> Iterator[Sequence[Reply]]:
    """The replies of every flow that has not ended, in batches.

    OSError if the kernel refuses, or listed only some of them.
    """
    if not _has_flows():
        return
    with Netlink(NETLINK_NETFILTER) as netlink:
        for bodies in netlink.stream(_CT_GET, _HEAD):
            yield [reply for body in bodies if (reply := reply_of(body))]


def translates_to(addresses: Container[Address]) -> bool:
    """Whether netfilter leads an open connection to one of these addresses elsewhere.

    OSError if the kernel refuses, or listed only some of them.
    """
    if not _has_flows():
        return False
    with Netlink(NETLINK_NETFILTER) as netlink:
        listed = netlink.stream(_CT_GET, _HEAD)
        return any(is_led_elsewhere(body, addresses) for bodies in listed for body in bodies)


def is_led_elsewhere(body: bytes, addresses: Container[Address]) -> bool:
    """Whether one message is about such a connection of TCP or SCTP."""
    flow = attributes(body, len(_HEAD))
    original = attributes(flow.get(_CTA_TUPLE_ORIG, b""))
    target = _address(_ends(original), _CTA_IP_V4_DST, _CTA_IP_V6_DST)
    if target is None or target not in addresses:
        return False
    protocol = _number(attributes(original.get(_CTA_TUPLE_PROTO, b"")).get(_CTA_PROTO_NUM, b""))
    reply = attributes(flow.get(_CTA_TUPLE_REPLY, b""))
    source = _address(_ends(reply), _CTA_IP_V4_SRC, _CTA_IP_V6_SRC)
    return protocol in _OPEN_STATES and _is_open(flow, protocol) and source != target


def reply_of(body: bytes) -> Reply | None:
    """The replies in one message; None if its flow has ended or has another protocol."""
    flow = attributes(body, len(_HEAD))
    reply = attributes(flow.get(_CTA_TUPLE_REPLY, b""))
    ports = attributes(reply.get(_CTA_TUPLE_PROTO, b""))
    protocol = _number(ports.get(_CTA_PROTO_NUM, b""))
    if not _is_open(flow, protocol):
        return None
    ends = _ends(reply)
    source = _address(ends, _CTA_IP_V4_SRC, _CTA_IP_V6_SRC)
    destination = _address(ends, _CTA_IP_V4_DST, _CTA_IP_V6_DST)
    pair = ports.get(_CTA_PROTO_SRC_PORT, b""), ports.get(_CTA_PROTO_DST_PORT, b"")
    if not source or not destination or any(len(port) != _PORT for port in pair):
        return None
    return Reply(protocol, source, _number(pair[0]), destination, _number(pair[1]))


def add_flows(flows: Iterable[Reply], seconds: int) -> int:
    """Register these flows, by their replies, with netfilter for some time; returns how many.

    Known flows are extended. Replies that belong to one of netfilter's own flows stay with it.
    Does nothing if netfilter tracks nothing. OSError if the kernel refuses.
    """
    taken = 0
    if not _COUNT.exists():
        return taken
    with Netlink(NETLINK_NETFILTER) as netlink:
        for flow in flows:
            try:
                netlink.create(_CT_NEW, _new_flow(flow, seconds))
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.EBUSY, errno.ENOMEM):
                    raise
            else:
                taken += 1
    return taken


def _new_flow(reply: Reply, seconds: int) -> bytes:
    """A flow without NAT."""
    one, other = (reply.source, reply.source_port), (reply.destination, reply.port)
    is_ipv4 = family_of(reply.source) is Family.IPV4
    parts = [
        _nested(_CTA_TUPLE_ORIG, _tuple(reply.protocol, other, one)),
        _nested(_CTA_TUPLE_REPLY, _tuple(reply.protocol, one, other)),
        attribute(_CTA_STATUS, _big(_ASSURED, 4)),
        attribute(_CTA_TIMEOUT, _big(seconds, 4)),
    ]
    if reply.protocol == Protocol.TCP:
        state = _nested(_OPEN_STATES[Protocol.TCP][0], attribute(_STATE, bytes([_ESTABLISHED])))
        parts.append(_nested(_CTA_PROTOINFO, state))
    return nft_head(socket.AF_INET if is_ipv4 else socket.AF_INET6) + b"".join(parts)


def _tuple(protocol: int, source: tuple[Address, int], destination: tuple[Address, int]) -> bytes:
    if family_of(source[0]) is Family.IPV4:
        kinds, size = (_CTA_IP_V4_SRC, _CTA_IP_V4_DST), _IPV4
    else:
        kinds, size = (_CTA_IP_V6_SRC, _CTA_IP_V6_DST), _ADDRESS
    ends = attribute(kinds[0], source[0][-size:]) + attribute(kinds[1], destination[0][-size:])
    ports = (
        attribute(_CTA_PROTO_NUM, bytes([protocol]))
        + attribute(_CTA_PROTO_SRC_PORT, _big(source[1], _PORT))
        + attribute(_CTA_PROTO_DST_PORT, _big(destination[1], _PORT))
    )
    return _nested(_CTA_TUPLE_IP, ends) + _nested(_CTA_TUPLE_PROTO, ports)


def _nested(kind: int, content: bytes) -> bytes:
    return attribute(_NESTED | kind, content)


def _big(value: int, size: int) -> bytes:
    return value.to_bytes(size, "big")


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


def _ends(one: dict[int, bytes]) -> dict[int, bytes]:
    return attributes(one.get(_CTA_TUPLE_IP, b""))


def _address(ends: dict[int, bytes], kind4: int, kind6: int) -> Address | None:
    found = address_of(ends[kind4] if kind4 in ends else ends.get(kind6, b""))
    return found if len(found) == _ADDRESS else None


def _number(payload: bytes) -> int:
    return int.from_bytes(payload, "big")
