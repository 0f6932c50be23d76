# SPDX-License-Identifier: Apache-2.0
"""Routes that a CPU remembers, for packets that ask the kernel exactly the same again.

Most tests use programs that remember them for an hour, each with client ports of its own.
"""

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from scapy.layers.l2 import Ether

from ebpflb.dataplane.layout.enums import DropReason, XdpResult
from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import (
    NARROW_ROUTE,
    NO_NEIGHBOUR,
    OVERLAY_MAC,
    OVERLAY_MTU,
    PEER_MAC,
    POD_MAC,
    ROUTE_MTU,
    ROUTE_REMEMBERED,
    Node,
)
from tests.bpf.harness.packets import IPV4, IPV6, KINDS, End, Kind, with_df
from tests.bpf.harness.services import client, external_ip, node_port, remote_backend
from tests.bpf.xdp.conftest import write_uplinks

FLOWS = 100
_PEER = {IPV4: "192.0.2.2", IPV6: "2001:db8:2::2"}
_ABSENT = {IPV4: "172.16.0.3", IPV6: "fd00:16::3"}
_DEFINED = "#define LB_NEXT_HOP_TIME 23"

pytestmark = pytest.mark.usefixtures("one_cpu")


@pytest.fixture(scope="module")
def long_memory(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """Programs that remember a route for an hour."""
    text = source_text()
    assert _DEFINED in text
    text = text.replace(_DEFINED, "#define LB_NEXT_HOP_TIME 42")
    return load(tmp_path_factory.mktemp("bpffs"), text, ["lb_xdp", "lb_host_ingress"])


@pytest.fixture
def lasting(long_memory: Loaded, node: Node) -> Datapath:
    datapath = Datapath(long_memory)
    datapath.reset()
    write_uplinks(datapath, node)
    return datapath


@pytest.fixture(scope="module")
def ports() -> Iterator[int]:
    return count(41000)


@pytest.fixture
def source(ports: Iterator[int], kind: Kind) -> End:
    """Of packets that no other test has sent."""
    return client(kind, next(ports))


@contextmanager
def routed_to_peer(kind: Kind, address: str) -> Iterator[None]:
    """A route to the address by another host, on the uplink."""
    route = [address, "via", _PEER[kind.net]]
    subprocess.run(["ip", "route", "add", *route], check=True)
    try:
        yield
    finally:
        subprocess.run(["ip", "route", "del", *route], check=True)


class Outside:
    """Sends through lb_xdp to a NodePort whose pod is on another node."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind, frontend: End) -> None:
        self._datapath, self._node, self._kind, self._frontend = datapath, node, kind, frontend

    def frame(self, source: End, flags: str = "S", length: int = 0) -> bytes:
        return bytes(
            with_df(self._kind.frame(source, self._frontend, flags, payload=bytes(length)))
        )

    def sent(self, source: End, flags: str = "S", length: int = 0) -> tuple[XdpAction, str]:
        """What became of a packet, and the MAC address to which it goes."""
        frame = self.frame(source, flags, length)
        action, out = self._datapath.run_xdp(frame, ifindex=self._node.uplink.ifindex)
        return action, Ether(out).dst


TO_OVERLAY = XdpAction.REDIRECT, OVERLAY_MAC
TO_PEER = XdpAction.TX, PEER_MAC


def test_only_packets_that_ask_the_same_take_the_route_that_is_remembered(
    lasting: Datapath, node: Node, kind: Kind, source: End, ports: Iterator[int]
):
    backend, index = remote_backend(lasting, kind)
    outside = Outside(lasting, node, kind, node_port(lasting, kind, [index]))
    known, new = source, client(kind, next(ports))
    assert outside.sent(known) == TO_OVERLAY
    with routed_to_peer(kind, backend.address):
        assert outside.sent(known, "A") == TO_OVERLAY
        assert outside.sent(new) == TO_PEER
    assert outside.sent(new, "A") == TO_PEER


def test_a_new_route_is_taken_after_a_hundredth_of_a_second(
    datapath: Datapath, node: Node, kind: Kind, source: End
):
    write_uplinks(datapath, node)
    backend, index = remote_backend(datapath, kind)
    outside = Outside(datapath, node, kind, node_port(datapath, kind, [index]))
    assert outside.sent(source) == TO_OVERLAY
    with routed_to_peer(kind, backend.address):
        time.sleep(ROUTE_REMEMBERED)
        assert outside.sent(source, "A") == TO_PEER


def test_each_of_many_flows_takes_its_own_route(
    lasting: Datapath, node: Node, kind: Kind, source: End
):
    lasting.settings(snat_ports=((1024, 65535), (1024, 65535)))
    _, first = remote_backend(lasting, kind)
    other, second = remote_backend(lasting, kind, kind.net.remote[:-1] + "8")
    frontends = node_port(lasting, kind, [first]), external_ip(lasting, kind, others=[second])
    outside = [Outside(lasting, node, kind, frontend) for frontend in frontends]
    network = source.address[:-1]
    sources = [End(f"{network}{number}", source.port) for number in range(10, 10 + FLOWS)]
    with routed_to_peer(kind, other.address):
        for flags in ("S", "A", "A"):
            sent = [[each.sent(source, flags) for each in outside] for source in sources]
            assert sent == [[TO_OVERLAY, TO_PEER]] * FLOWS


def test_a_longer_packet_is_compared_with_the_mtu_of_the_remembered_route(
    lasting: Datapath, node: Node, kind: Kind, source: End
):
    _, index = remote_backend(lasting, kind)
    outside = Outside(lasting, node, kind, node_port(lasting, kind, [index]))
    assert outside.sent(source) == TO_OVERLAY
    before = lasting.xdp_results()
    assert outside.sent(source, "A", OVERLAY_MTU)[0] is XdpAction.PASS
    assert lasting.xdp_results() - before == {XdpResult.LB_XDP_ROUTE: 1}
    frame = outside.frame(source, "A", OVERLAY_MTU)
    verdict, _ = lasting.run_bytes("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    assert verdict == Verdict.REDIRECT
    assert lasting.drops() == {DropReason.LB_DROP_TOO_BIG: 1}
    assert outside.sent(source, "A") == TO_OVERLAY


@pytest.mark.parametrize("kind", [each for each in KINDS if each.net is IPV4], ids=str)
def test_the_route_of_a_packet_that_may_be_fragmented_tells_no_mtu(
    lasting: Datapath, node: Node, kind: Kind, source: End
):
    """Its size is not asked about, so that the MTU in the answer is the device's."""
    _, index = remote_backend(lasting, kind, NARROW_ROUTE[kind.net.remote])
    whole = kind.frame(source, node_port(lasting, kind, [index]), payload=bytes(ROUTE_MTU))
    ifindex = node.uplink.ifindex
    assert lasting.run("lb_host_ingress", whole, ifindex=ifindex).verdict == Verdict.PASS
    assert not lasting.drops()
    lasting.run("lb_host_ingress", with_df(whole), ifindex=ifindex)
    assert lasting.drops() == {DropReason.LB_DROP_TOO_BIG: 1}


def test_a_route_without_a_known_neighbour_is_not_remembered(
    lasting: Datapath, node: Node, kind: Kind, source: End
):
    _, index = remote_backend(lasting, kind, NO_NEIGHBOUR[kind.net.remote])
    outside = Outside(lasting, node, kind, node_port(lasting, kind, [index]))
    assert outside.sent(source)[0] is XdpAction.PASS
    neighbour = [_ABSENT[kind.net], "dev", node.overlay.name]
    subprocess.run(
        ["ip", "neigh", "replace", *neighbour, "lladdr", POD_MAC, "nud", "permanent"], check=True
    )
    try:
        assert outside.sent(source) == (XdpAction.REDIRECT, POD_MAC)
    finally:
        subprocess.run(["ip", "neigh", "del", *neighbour], check=True)
