# SPDX-License-Identifier: Apache-2.0
"""A router between the client and node1, which sends a Service's address to the node for good.

What the node sends back comes to it again, each time with a lower TTL.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.lab import Lab
from tests.e2e.harness.cluster import address_of
from tests.e2e.networks.uplinks import ETHER_TYPE, tap

NODE = "node1"
FIRST_TTL = 63
"""Of the client's packets after this router."""
_FORWARDING = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")
# In a frame: the destination, and the TTL or hop limit.
_DESTINATION = {4: slice(30, 34), 6: slice(38, 54)}
_TTL = {4: 22, 6: 21}
_PACKED = {4: socket.AF_INET, 6: socket.AF_INET6}


@contextmanager
def forwarding(lab: Lab) -> Iterator[None]:
    """The underlay forwards, and tells nobody of shorter ways."""
    before = {name: _sysctl(lab, name) for name in (*_FORWARDING, _REDIRECTS)}
    for name in _FORWARDING:
        _sysctl(lab, name, "1")
    _sysctl(lab, _REDIRECTS, "0")
    yield
    for name, value in before.items():
        _sysctl(lab, name, value)


_REDIRECTS = "ipv4/conf/all/send_redirects"


def _sysctl(lab: Lab, name: str, value: str = "") -> str:
    write = f"echo {value} > /proc/sys/net/{name}; " if value else ""
    done = lab.underlay.exec(["sh", "-c", f"{write}cat /proc/sys/net/{name}"])
    return str(done.stdout).strip()


@contextmanager
def routed(lab: Lab, address: str, version: int) -> Iterator[None]:
    """The client reaches the address by the router, and the router by node1.

    The router also knows the pods' nodes, as no pod is masqueraded here.
    """
    ranges = lab.layout.ranges_of(version)
    own = address_of(lab.node(NODE), version)
    ways = [(lab.client, address, ranges.gateway()), (lab.underlay, address, own)]
    for number, node in enumerate(lab.nodes, 1):
        ways.append((lab.underlay, str(ranges.pods(number)), address_of(node, version)))
    for member, to, via in ways:
        member.exec(["ip", "route", "add", to, "via", via])
    yield
    for member, to, via in ways:
        member.exec(["ip", "route", "del", to, "via", via])


@contextmanager
def sent_to_node(lab: Lab, address: str, version: int) -> Iterator[set[int]]:
    """Yields the TTLs of packets that the router sent to node1, filled in at the end."""
    seen: set[int] = set()
    wanted = socket.inet_pton(_PACKED[version], address)
    with lab.underlay.entered(), tap(NODE) as made:
        yield seen
        while True:
            try:
                frame, place = made.recvfrom(2048)
            except BlockingIOError:
                return
            is_sent = place[2] == socket.PACKET_OUTGOING and frame[12:14] == ETHER_TYPE[version]
            if is_sent and frame[_DESTINATION[version]] == wanted:
                seen.add(frame[_TTL[version]])
