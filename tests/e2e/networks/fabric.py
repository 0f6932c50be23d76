# SPDX-License-Identifier: Apache-2.0
"""node1 behind two uplinks, over which it and the external router spread flows (ECMP).

The underlay is the router of both. The node's own address is on its loopback device, as on nodes
that announce it to their routers. Numbered uplinks have their own subnets; unnumbered ones have
link-local addresses only, which are the next hops for IPv4 too (RFC 5549).
"""

import socket
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import NamedTuple

from ebpflb.lab import Lab, Member
from tests.e2e.harness.cluster import address_of
from tests.e2e.networks.plugins import LONGEST, UPLINK, VERSIONS, nodad, run
from tests.e2e.networks.uplinks import ETHER_TYPE, tap

NODE = "node1"
FIRST, SECOND = "eth1", "eth2"
LINKS = (FIRST, SECOND)
_SUBNETS = {
    FIRST: {4: "203.0.113.0/30", 6: "2001:db8:ff01::/126"},
    SECOND: {4: "203.0.113.4/30", 6: "2001:db8:ff02::/126"},
}
# In each subnet.
_NUMBERS = {"router": 1, "node": 2}
_LINK_LOCAL = {"router": "fe80::1", "node": "fe80::2"}
# Offsets of source and destination in a frame.
_ADDRESSES = {4: (slice(26, 30), slice(30, 34)), 6: (slice(22, 38), slice(38, 54))}
# Hash over addresses and ports.
_BY_FLOW = "1"


class Crossing(NamedTuple):
    """A packet that leaves the node: its uplink and its source."""

    link: str
    source: str


class Fabric:
    """The uplinks, the routes over them, and a record of the packets that cross them."""

    def __init__(self, lab: Lab, *, numbered: bool) -> None:
        """The node has no other uplink afterwards. numbered: see above."""
        self._lab = lab
        self._node, self._router = lab.node(NODE), lab.underlay
        self.is_numbered = numbered
        self._replace_uplink()
        self._spread_over(LINKS)

    def source(self, link: str, version: int) -> str:
        """The masquerade address of packets that leave by this uplink."""
        if self.is_numbered:
            return self._place(link, version, "node")
        return address_of(self._node, version)

    @contextmanager
    def without(self, link: str) -> Iterator[None]:
        """The router's end of the uplink is down, and both sides use the other one."""
        run(self._router, 4, [f"link set {_port(link)} down"])
        self._spread_over([each for each in LINKS if each != link])
        try:
            yield
        finally:
            run(self._router, 4, [f"link set {_port(link)} up"])
            for version in VERSIONS:
                self._number(link, version)
            self._spread_over(LINKS)

    @contextmanager
    def crossings(self, pod: Member, version: int) -> Iterator[set[Crossing]]:
        """Yields how packets to the pod left the node, filled in at the end."""
        seen: set[Crossing] = set()
        with ExitStack() as stack:
            with self._router.entered():
                taps = {link: stack.enter_context(tap(_port(link))) for link in LINKS}
            yield seen
            to = ip_address(address_of(pod, version)).packed
            for link, each in taps.items():
                seen.update(Crossing(link, source) for source in _sources(each, version, to))

    def _replace_uplink(self) -> None:
        for member in (self._node, self._router):
            with member.entered():
                for version in VERSIONS:
                    policy = Path(f"/proc/sys/net/ipv{version}/fib_multipath_hash_policy")
                    policy.write_text(_BY_FLOW)
        with self._router.entered():
            for name in ("ipv4/ip_forward", "ipv6/conf/all/forwarding"):
                Path("/proc/sys/net", name).write_text("1")
        run(self._node, 4, [f"link del {UPLINK}"])
        for link in LINKS:
            peer = f"peer name {_port(link)} netns {self._router.namespace.name}"
            run(self._node, 4, [f"link add {link} type veth {peer}", f"link set {link} up"])
            run(self._router, 4, [f"link set {_port(link)} up"])
        for version in VERSIONS:
            for link in LINKS:
                self._number(link, version)
            run(self._node, version, [f"addr add {self._own(version)} dev lo"])
            self._tell_others(version)

    def _spread_over(self, links: Collection[str]) -> None:
        """From now on both sides send by these uplinks."""
        for version in VERSIONS:
            ranges = self._lab.layout.ranges_of(version)
            to_node = " ".join(self._hop(link, version, "router") for link in links)
            places = (self._own(version), ranges.pods(1), ranges.external())
            run(self._router, version, [f"route replace {place} {to_node}" for place in places])
            to_router = " ".join(self._hop(link, version, "node") for link in links)
            run(self._node, version, [f"route replace default {to_router}"])

    def _own(self, version: int) -> str:
        return f"{address_of(self._node, version)}/{LONGEST[version]}"

    def _number(self, link: str, version: int) -> None:
        """Both ends get their addresses; existing ones are not touched."""
        bits = ip_network(_SUBNETS[link][version]).prefixlen
        for member, device, who in (
            (self._router, _port(link), "router"),
            (self._node, link, "node"),
        ):
            places = [f"{_LINK_LOCAL[who]}/64"] if version == VERSIONS[1] else []
            if self.is_numbered:
                places.append(f"{self._place(link, version, who)}/{bits}")
            end = f"dev {device}{nodad(version)}"
            run(member, version, [f"addr replace {place} {end}" for place in places])

    def _tell_others(self, version: int) -> None:
        """Other nodes and the client send everything to the router."""
        ranges = self._lab.layout.ranges_of(version)
        via = f"via {ranges.gateway()}"
        for node in self._lab.nodes[1:]:
            number = int(node.name.removeprefix("node"))
            to_pods = f"route add {ranges.pods(number)} via {address_of(node, version)}"
            run(self._router, version, [to_pods])
            run(node, version, [f"route replace {ranges.pods(1)} {via}"])
        places = (self._own(version), ranges.external())
        for member in (*self._lab.nodes[1:], self._lab.client):
            run(member, version, [f"route replace {place} {via}" for place in places])

    def _hop(self, link: str, version: int, who: str) -> str:
        """The next hop towards the other side, as seen by the node or the router."""
        device, other = (link, "router") if who == "node" else (_port(link), "node")
        if self.is_numbered:
            return f"nexthop via {self._place(link, version, other)} dev {device}"
        return f"nexthop via inet6 {_LINK_LOCAL[other]} dev {device}"

    def _place(self, link: str, version: int, who: str) -> str:
        return str(ip_network(_SUBNETS[link][version])[_NUMBERS[who]])


def _sources(made: socket.socket, version: int, to: bytes) -> Iterator[str]:
    """The sources of packets that arrived at this address."""
    source, destination = _ADDRESSES[version]
    while True:
        try:
            frame, place = made.recvfrom(2048)
        except BlockingIOError:
            return
        came = place[2] != socket.PACKET_OUTGOING and frame[12:14] == ETHER_TYPE[version]
        if came and frame[destination] == to:
            yield str(ip_address(frame[source]))


def _port(link: str) -> str:
    return f"to-{link}"
