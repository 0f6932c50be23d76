# SPDX-License-Identifier: Apache-2.0
"""A packet too big for its route is answered with the MTU of the route or of the device."""

from typing import NamedTuple

import pytest
from scapy.packet import Packet

from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.harness.datapath import Datapath, Result, Verdict
from tests.bpf.harness.errors import TOO_BIG, assert_answered
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import NARROW_ROUTE, NO_NEIGHBOUR, OVERLAY_MTU, ROUTE_MTU, Node
from tests.bpf.harness.packets import End, Kind, with_df
from tests.bpf.harness.services import (
    client,
    local_backend,
    node_addresses,
    node_port,
    remote_backend,
)

PROGRAM = "lb_host_ingress"
LEAST_MTU = {4: 576, 6: 1280}


class Router(NamedTuple):
    """A node, and whether its programs learn the route's MTU or only the device's."""

    datapath: Datapath
    node: Node
    knows_routes: bool

    def run(self, packet: Packet, gso_size: int = 0) -> Result:
        return self.datapath.run(
            PROGRAM, packet, ifindex=self.node.uplink.ifindex, gso_size=gso_size
        )

    def frontend(self, kind: Kind, address: str) -> End:
        """A NodePort with a backend at an address of the other node."""
        _, index = remote_backend(self.datapath, kind, address)
        return node_port(self.datapath, kind, [index])

    def mtu_known(self, of_route: int) -> int:
        """The MTU that its programs know for a route."""
        return of_route if self.knows_routes else OVERLAY_MTU


@pytest.fixture(scope="module")
def device_mtus(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The program on a kernel whose route lookup does not return the MTU."""
    text = f"#undef LB_HAS_FIB_MTU\n#define LB_HAS_FIB_MTU 0\n{source_text()}"
    return load(tmp_path_factory.mktemp("bpffs"), text, [PROGRAM])


@pytest.fixture(params=["route", "device"])
def router(
    request: pytest.FixtureRequest, programs: Loaded, device_mtus: Loaded, node: Node
) -> Router:
    by_route = request.param == "route"
    datapath = Datapath(programs if by_route else device_mtus)
    datapath.reset()
    node_addresses(datapath, node)
    return Router(datapath, node, by_route and Probe().supports(Feature.FIB_MTU))


def sized(kind: Kind, target: End, length: int, source: End | None = None) -> Packet:
    """A packet, by default of the client, whose network layer has `length` bytes."""
    source = source or client(kind)
    empty = len(kind.frame(source, target, payload=b"").payload)
    return with_df(kind.frame(source, target, payload=bytes(length - empty)))


MTUS = pytest.mark.parametrize(
    ("addresses", "mtu"),
    [({}, OVERLAY_MTU), (NARROW_ROUTE, ROUTE_MTU), (NO_NEIGHBOUR, OVERLAY_MTU)],
    ids=["device", "route", "no neighbour"],
)


@MTUS
def test_a_packet_that_does_not_fit_is_answered_with_the_mtu(
    router: Router, kind: Kind, addresses: dict[str, str], mtu: int
):
    mtu = router.mtu_known(mtu)
    frontend = router.frontend(kind, addresses.get(kind.net.remote, kind.net.remote))
    too_long = sized(kind, frontend, mtu + 1)

    result = router.run(too_long)

    assert_answered(result, kind, too_long, TOO_BIG, mtu)
    assert router.datapath.drops() == {DropReason.LB_DROP_TOO_BIG: 1}
    fitting = sized(kind, frontend, mtu)
    result = router.run(fitting)
    assert result.verdict is Verdict.REDIRECT
    assert len(result.packet) == len(fitting)


@MTUS
def test_what_counts_of_a_segmented_packet_are_its_segments(
    router: Router, kind: Kind, addresses: dict[str, str], mtu: int
):
    mtu = router.mtu_known(mtu)
    address = addresses.get(kind.net.remote, kind.net.remote)
    packet = sized(kind, router.frontend(kind, address), 3000)
    headers = len(packet.payload) - len(packet.payload.payload.payload)

    fitting = router.run(packet, mtu - headers)
    assert fitting.packet.payload.dst == address
    assert_answered(router.run(packet, mtu - headers + 1), kind, packet, TOO_BIG, mtu)


def test_the_mtu_of_a_device_without_programs_is_the_least_there_is(
    datapath: Datapath, device_mtus: Loaded, node: Node, kind: Kind
):
    router = Router(Datapath(device_mtus), node, knows_routes=False)
    router.datapath.reset()
    node_addresses(router.datapath, node)
    router.datapath.device(node.overlay.ifindex, snat4=kind.net.overlay, snat6=kind.net.overlay)
    too_long = sized(kind, router.frontend(kind, kind.net.remote), OVERLAY_MTU + 100)
    least = LEAST_MTU[kind.net.family]
    assert_answered(router.run(too_long), kind, too_long, TOO_BIG, least)


def test_a_reply_must_fit_the_device_that_it_is_redirected_to(
    datapath: Datapath, node: Node, kind: Kind
):
    fitting, sent = reply_by_uplink(datapath, node, kind, kind.net.overlay, OVERLAY_MTU)
    assert sent.verdict is Verdict.REDIRECT
    assert len(sent.packet) == len(fitting)
    too_long, answered = reply_by_uplink(datapath, node, kind, kind.net.overlay, OVERLAY_MTU + 1)
    assert_answered(answered, kind, too_long, TOO_BIG, OVERLAY_MTU)
    assert datapath.drops() == {DropReason.LB_DROP_TOO_BIG: 1}


def test_a_reply_that_is_not_redirected_need_not_fit_the_device_of_the_request(
    datapath: Datapath, node: Node, kind: Kind
):
    _, left = reply_by_uplink(datapath, node, kind, kind.net.node, OVERLAY_MTU + 1)
    assert left.verdict is Verdict.PASS
    assert not datapath.drops()


def reply_by_uplink(
    datapath: Datapath, node: Node, kind: Kind, address: str, length: int
) -> tuple[Packet, Result]:
    """A reply to a request that came by the overlay to a NodePort at `address`; and its fate."""
    node_addresses(datapath, node)
    backend, index = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])._replace(address=address)
    request = kind.frame(client(kind), frontend)
    datapath.run("lb_host_ingress", request, ifindex=node.overlay.ifindex)
    reply = sized(kind, client(kind), length, backend)
    return reply, datapath.run("lb_host_egress", reply, ifindex=node.uplink.ifindex)
