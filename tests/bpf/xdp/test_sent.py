# SPDX-License-Identifier: Apache-2.0
"""XDP and tc send the same packets and leave the same entries and counters."""

from collections.abc import Callable, Sequence

import pytest
from scapy.layers.l2 import Ether

from ebpflb.dataplane.layout.enums import XdpResult
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction
from tests.bpf.harness.node import OVERLAY_MAC, ROUTER_MAC, Node
from tests.bpf.harness.packets import (
    NODE_MAC,
    TCP_KINDS,
    End,
    Kind,
    assert_same,
    changed,
    source_of,
)
from tests.bpf.harness.services import (
    client,
    cluster_ip,
    external_ip,
    node_port,
    remote_backend,
)
from tests.bpf.xdp.conftest import write_uplinks
from tests.bpf.xdp.snapshot import LINK, Snapshot, snapshot

pytestmark = pytest.mark.usefixtures("uplinks")


PORT = 5000


def of_external_ip(datapath: Datapath, kind: Kind, backends: list[int]) -> End:
    return external_ip(datapath, kind, local=backends, others=backends)


def session(kind: Kind, frontend: End, backend: End) -> list[bytes]:
    """A complete connection: frames of the client and of the backend, and the lowest TTL among
    them.
    """
    request = (client(kind), frontend)
    reply = (backend, End(kind.net.overlay, PORT))
    steps = [(request, "S"), (reply, "SA"), (request, "A"), (request, "PA"), (reply, "PA")]
    steps += [(request, "FA"), (reply, "FA"), (request, "A"), (request, "S")]
    frames = [bytes(kind.frame(*ends, flags, ack=1018)) for ends, flags in steps]
    return [*frames, bytes(kind.frame(*request, "PA", ttl=2, payload=b"odd"))]


class Path:
    """Sends each frame through tc or XDP, following a repeated list of choices."""

    def __init__(self, datapath: Datapath, node: Node, at_xdp: Sequence[bool]) -> None:
        self._datapath, self._node, self._at_xdp = datapath, node, at_xdp

    def outcome(self, kind: Kind, make: Callable[..., End]) -> tuple[list[bytes], Snapshot]:
        """What the frames of a session become, without their link headers; and the maps."""
        datapath = self._datapath
        datapath.reset()
        write_uplinks(datapath, self._node)
        datapath.settings(snat_ports=((PORT, PORT), (PORT, PORT)))
        backend, index = remote_backend(datapath, kind)
        frames = session(kind, make(datapath, kind, [index]), backend)
        sent = [self._sent(number, frame, backend) for number, frame in enumerate(frames)]
        return sent, snapshot(datapath)

    def _sent(self, number: int, frame: bytes, backend: End) -> bytes:
        tap = self._node.overlay if source_of(Ether(frame)) == backend else self._node.uplink
        if self._at_xdp[number % len(self._at_xdp)]:
            action, out = self._datapath.run_xdp(frame, ifindex=tap.ifindex)
            assert action is XdpAction.REDIRECT
        else:
            verdict, out = self._datapath.run_bytes("lb_host_ingress", frame, ifindex=tap.ifindex)
            assert verdict == Verdict.REDIRECT
        return out[LINK:]


@pytest.mark.parametrize("make", [cluster_ip, of_external_ip, node_port])
def test_a_session_is_the_same_at_tc_at_xdp_and_in_turns(
    datapath: Datapath, node: Node, kind: Kind, make: Callable[..., End]
):
    ways = [[False], [True], [False, True], [True, False], [True, True, False]]
    outcomes = [Path(datapath, node, at_xdp).outcome(kind, make) for at_xdp in ways]
    for outcome in outcomes[1:]:
        assert outcome == outcomes[0]


def test_a_request_gets_the_next_hop_and_the_replys_goes_back(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)

    action, out = datapath.run_xdp(bytes(request), ifindex=node.uplink.ifindex)

    assert action is XdpAction.REDIRECT
    masked = source_of(Ether(out))
    assert masked.address == kind.net.overlay
    macs = (NODE_MAC, OVERLAY_MAC)
    assert_same(Ether(out), changed(request, source=masked, target=backend, hops=1, macs=macs))

    reply = kind.frame(backend, masked, "SA")
    action, out = datapath.run_xdp(bytes(reply), ifindex=node.overlay.ifindex)

    assert action is XdpAction.REDIRECT
    macs = (NODE_MAC, ROUTER_MAC)
    expected = changed(reply, source=frontend, target=client(kind), hops=1, macs=macs)
    assert_same(Ether(out), expected)
    assert datapath.xdp_results()[XdpResult.LB_XDP_SENT] == 2


def test_what_leaves_by_the_device_it_came_in_by_needs_no_other(
    datapath: Datapath, node: Node, kind: Kind
):
    _, index = remote_backend(datapath, kind, client(kind).address)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    datapath.device(node.uplink.ifindex, snat4=kind.net.node, snat6=kind.net.node)

    action, out = datapath.run_xdp(bytes(request), ifindex=node.uplink.ifindex)

    assert action is XdpAction.TX
    assert Ether(out).dst == ROUTER_MAC


def test_a_device_whose_place_another_one_has(datapath: Datapath, node: Node, kind: Kind):
    """Then only lb_devices has its MAC address and flags."""
    _, index = remote_backend(datapath, kind)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    datapath.clear("lb_uplinks")
    action, _ = datapath.run_xdp(bytes(request), ifindex=node.uplink.ifindex)
    assert action is XdpAction.REDIRECT


def test_udp_without_a_checksum_stays_without(datapath: Datapath, node: Node, udp: Kind):
    _, index = remote_backend(datapath, udp)
    request = udp.frame(client(udp), node_port(datapath, udp, [index]))
    request.payload.payload.chksum = 0

    _, out = datapath.run_xdp(bytes(request), ifindex=node.uplink.ifindex)

    assert Ether(out).payload.payload.chksum == 0


@pytest.mark.parametrize("tcp", TCP_KINDS, ids=str)
def test_payloads_of_every_length_keep_their_checksum(datapath: Datapath, node: Node, tcp: Kind):
    _, index = remote_backend(datapath, tcp)
    frontend = node_port(datapath, tcp, [index])
    for size in range(40):
        payload = bytes(range(size, 2 * size))
        request = tcp.frame(client(tcp), frontend, payload=payload)
        _, out = datapath.run_xdp(bytes(request), ifindex=node.uplink.ifindex)
        macs = (NODE_MAC, OVERLAY_MAC)
        ends = {"source": source_of(Ether(out)), "target": End(tcp.net.remote, 8080)}
        assert_same(Ether(out), changed(request, **ends, hops=1, macs=macs))
