# SPDX-License-Identifier: Apache-2.0
"""Two links between a node and the client, and control over which one each side sends by.

The addresses of both are on their loopback devices, as on nodes that announce them to routers.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address, ip_network

from ebpflb.lab import Lab, Member

FIRST, SECOND = "eth1", "eth2"
NODE = {4: "192.0.2.1", 6: "2001:db8:2::1"}
CLIENT = {4: "198.51.100.1", 6: "2001:db8:100::1"}

_LINKS = {
    FIRST: {4: "203.0.113.0/30", 6: "2001:db8:ff01::/126"},
    SECOND: {4: "203.0.113.4/30", 6: "2001:db8:ff02::/126"},
}
_VERSIONS = (4, 6)
_ETH_P_ALL = 3
# Offset of the source address in a frame.
_SOURCE = {4: slice(26, 30), 6: slice(22, 38)}
ETHER_TYPE = {4: b"\x08\x00", 6: b"\x86\xdd"}


class Uplinks:
    """The links of node1 and the client. On each, the node has the first address."""

    def __init__(self, lab: Lab) -> None:
        """Make them; `reset()` gives them addresses and routes."""
        self._node = lab.node("node1")
        self._client = lab.client
        self._lab = lab
        self.reset()

    def reset(self) -> bool:
        """Both links are up, and both sides send by the first one. Returns whether a link was
        recreated.
        """
        with self._node.entered():
            missing = _LINKS.keys() - {name for _, name in socket.if_nameindex()}
        for name in missing:
            peer = ["peer", "name", name, "netns", self._client.namespace.name]
            self._node.exec(["ip", "link", "add", name, "type", "veth", *peer])
        for member, own, number in ((self._node, NODE, 1), (self._client, CLIENT, 2)):
            lines = [f"address replace {address} dev lo" for address in own.values()]
            for name, networks in _LINKS.items():
                lines.append(f"link set {name} up mtu 1500")
                for network in networks.values():
                    place = f"{_address(network, number)}/{ip_network(network).prefixlen}"
                    lines.append(f"address replace {place} dev {name} nodad")
            _ip(member, lines)
        self.node_sends_by(FIRST)
        self.client_sends_by(FIRST)
        return bool(missing)

    def node_sends_by(self, name: str, table: str = "main") -> None:
        """The node's route to the client."""
        routes = [(CLIENT[version], _address(_LINKS[name][version], 2)) for version in _VERSIONS]
        _ip(
            self._node,
            [f"route replace {to} via {via} dev {name} table {table}" for to, via in routes],
        )

    def client_sends_by(self, name: str) -> None:
        """The client's route to the node."""
        for version in _VERSIONS:
            via = _address(_LINKS[name][version], 1)
            route = f"route replace {NODE[version]} via {via} dev {name} src {CLIENT[version]}"
            _ip(self._client, [route])

    def take_down(self, name: str) -> None:
        """The node's end of the link is down, which removes its routes."""
        _ip(self._node, [f"link set {name} down"])

    def remove(self, name: str) -> None:
        """Delete the link, as if the network card were pulled out."""
        self._node.exec(["ip", "link", "delete", name])

    @contextmanager
    def renumbered(self, version: int) -> Iterator[None]:
        """The node has another address in the nodes' network."""
        ranges = self._lab.layout.ranges_of(version)
        before, after = ranges.node(1), ranges.node(99)
        self._renumber(version, before, after)
        yield
        self._renumber(version, after, before)

    def _renumber(self, version: int, before: str, after: str) -> None:
        ranges = self._lab.layout.ranges_of(version)
        bits, nodad = ranges.underlay().prefixlen, " nodad" if version == _VERSIONS[1] else ""
        lines = [
            f"address del {before}/{bits} dev eth0",
            f"address add {after}/{bits} dev eth0{nodad}",
            f"route replace {ranges.pods(2)} via {ranges.node(2)}",
            f"route replace default via {ranges.gateway()}",
        ]
        _ip(self._node, lines)

    @contextmanager
    def source_routed(self, name: str) -> Iterator[None]:
        """Packets with the node's address as their source leave by this link, whatever the other
        routes.
        """
        table = "100"
        self.node_sends_by(name, table)
        for version in _VERSIONS:
            self._node.exec(_rule(version, "add", table))
        yield
        for version in _VERSIONS:
            self._node.exec(_rule(version, "del", table))

    @contextmanager
    def replies(self, version: int) -> Iterator[set[str]]:
        """Yields the links by which packets from the node's address reached the client, filled in
        at the end.
        """
        seen: set[str] = set()
        with ExitStack() as stack:
            with self._client.entered():
                there = {name for _, name in socket.if_nameindex()}
                taps = {name: stack.enter_context(tap(name)) for name in there & _LINKS.keys()}
            yield seen
            seen.update(name for name, made in taps.items() if _hears(made, version))


def _hears(made: socket.socket, version: int) -> bool:
    """Whether any packet that has arrived is from the node's address."""
    source = ip_address(NODE[version]).packed
    heard = False
    while True:
        try:
            frame, place = made.recvfrom(2048)
        except BlockingIOError:
            return heard
        came = place[2] != socket.PACKET_OUTGOING and frame[12:14] == ETHER_TYPE[version]
        heard |= came and frame[_SOURCE[version]] == source


@contextmanager
def tap(name: str) -> Iterator[socket.socket]:
    """A packet socket on a device of the current namespace; non-blocking."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ETH_P_ALL)) as made:
        made.bind((name, _ETH_P_ALL))
        made.setblocking(False)
        yield made


def _rule(version: int, verb: str, table: str) -> list[str]:
    return ["ip", f"-{version}", "rule", verb, "from", NODE[version], "lookup", table]


def _address(network: str, number: int) -> str:
    return str(ip_network(network)[number])


def _ip(member: Member, lines: Sequence[str]) -> None:
    member.exec(["ip", "-batch", "-"], input="\n".join(lines))
