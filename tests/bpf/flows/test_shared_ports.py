# SPDX-License-Identifier: Apache-2.0
"""Source ports shared with processes of the node: a masqueraded flow never takes one that a process
uses towards the same backend.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from socket import AF_INET, AF_INET6, IPPROTO_TCP, SOCK_DGRAM, SOCK_STREAM, socket

import pytest

from ebpflb.dataplane.layout.enums import DropReason, SettingFlag, XdpResult
from ebpflb.model.address import Protocol
from tests.bpf.flows.outside import Outside
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind

TCP_REPAIR = 19
TAKEN, FREE = 2000, 2001
ONE = ((TAKEN, TAKEN), (TAKEN, TAKEN))


class Shared:
    """External clients, and processes of the node bound to its overlay address."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self.outside = Outside(datapath, node, kind)
        self.datapath, self.kind = datapath, kind
        self.node = node
        self.own = End(kind.net.overlay, TAKEN)
        self.give((TAKEN, FREE), (TAKEN, FREE))

    def give(self, *ports: tuple[int, int]) -> None:
        """Set the ports available for masquerading."""
        self.datapath.settings(ports, flags=SettingFlag.LB_SETTING_SHARED_PORTS)

    @contextmanager
    def bound(self) -> Iterator[socket]:
        """A socket of the node bound to one of these ports."""
        family = AF_INET if self.kind.net is IPV4 else AF_INET6
        kind = SOCK_STREAM if self.kind.proto is Protocol.TCP else SOCK_DGRAM
        with socket(family, kind) as made:
            made.bind(self.own)
            yield made

    @contextmanager
    def connected(self, target: End) -> Iterator[socket]:
        """A connected socket. It sends no packet: a TCP socket is in repair mode."""
        with self.bound() as made:
            if self.kind.proto is Protocol.TCP:
                made.setsockopt(IPPROTO_TCP, TCP_REPAIR, 1)
            made.connect(target)
            yield made


@pytest.fixture
def shared(datapath: Datapath, node: Node, kind: Kind) -> Shared:
    return Shared(datapath, node, kind)


def test_a_port_that_a_process_uses_to_the_backend_is_not_allocated(shared: Shared):
    outside = shared.outside
    with shared.connected(outside.backend):
        assert outside.source(10000).port == FREE
        assert outside.send(10001).verdict is Verdict.DROP
        assert shared.datapath.drops() == {DropReason.LB_DROP_SNAT_PORTS: 1}
        answer = shared.kind.frame(outside.backend, shared.own, "PA")
        ifindex = shared.node.overlay.ifindex
        assert_untouched(shared.datapath, "lb_host_ingress", answer, ifindex=ifindex)


def test_a_port_that_a_process_uses_to_another_destination_is_allocated(shared: Shared):
    shared.give(*ONE)
    other = shared.outside.backend._replace(port=9999)
    with shared.connected(other):
        assert shared.outside.source(10000).port == TAKEN


def test_a_process_that_waits_gets_answers_of_udp_from_anywhere(shared: Shared):
    shared.give(*ONE)
    is_tcp = shared.kind.proto is Protocol.TCP
    with shared.bound() as made:
        if is_tcp:
            made.listen()
        sent = shared.outside.send(10000)
        assert sent.verdict is (Verdict.REDIRECT if is_tcp else Verdict.DROP)


def test_at_xdp_new_flows_are_left_to_tc_which_asks(shared: Shared):
    for name, tap in (("uplink", shared.node.uplink), ("overlay", shared.node.overlay)):
        net = {"uplink": "node", "overlay": "overlay"}[name]
        v4, v6 = getattr(IPV4, net), getattr(IPV6, net)
        shared.datapath.device(tap.ifindex, snat4=v4, snat6=v6, xdp=True)
    outside = shared.outside
    frame = bytes(shared.kind.frame(outside.client(10000), outside.frontend))
    with shared.connected(outside.backend):
        action, _ = shared.datapath.run_xdp(frame, ifindex=shared.node.uplink.ifindex)
        assert action is XdpAction.PASS
        assert shared.datapath.xdp_results()[XdpResult.LB_XDP_STACK] == 1
        assert outside.source(10000).port == FREE
    action, _ = shared.datapath.run_xdp(frame, ifindex=shared.node.uplink.ifindex)
    assert action is XdpAction.REDIRECT
