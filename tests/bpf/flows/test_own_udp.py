# SPDX-License-Identifier: Apache-2.0
"""UDP that the node itself sends from a Service's port: the reply is no request to the Service."""

import time
from collections.abc import Callable, Sequence
from socket import AF_INET, AF_INET6, SOCK_DGRAM, socket

import pytest
from scapy.packet import Packet

from ebpflb.dataplane.flows.source_ports import Reservations
from ebpflb.dataplane.layout.enums import AddrFlag, FrontendTypeCode, Hook
from ebpflb.model.address import parse_address
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched, flow_tuple
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, End, Kind, assert_same, target_of
from tests.bpf.harness.services import (
    CLIENT_PORT,
    node_addresses,
    node_port,
    remote_backend,
)

TIMEOUT, STREAM_TIMEOUT = 30, 120
WAYS = {
    "outside": ("lb_host_egress", "lb_host_ingress"),
    "pod": ("lb_pod_egress", "lb_pod_ingress"),
}


class Asking:
    """A host process bound to a Service's port, and the server that it queries."""

    def __init__(
        self, datapath: Datapath, node: Node, udp: Kind, peer: str, make: Callable[..., End]
    ) -> None:
        node_addresses(datapath, node)
        datapath.settings(udp_timeout=TIMEOUT, udp_stream_timeout=STREAM_TIMEOUT)
        self.datapath, self.kind = datapath, udp
        self.backend, index = remote_backend(datapath, udp)
        self.own = make(datapath, udp, [index])
        device = node.uplink if peer == "outside" else node.pod
        self.ifindex = device.ifindex
        self.peer = End(udp.net.client if peer == "outside" else udp.net.pod, CLIENT_PORT)
        self.way_out, self._way_in = WAYS[peer]
        self.key = flow_tuple(self.peer, self.own, udp.proto)

    @property
    def answer(self) -> Packet:
        return self.kind.frame(self.peer, self.own)

    def ask(self) -> None:
        """Its datagram leaves unchanged."""
        packet = self.kind.frame(self.own, self.peer)
        result = self.datapath.run(self.way_out, packet, ifindex=self.ifindex)
        assert result.verdict is Verdict.PASS
        assert_same(result.packet, packet)

    def hears(self) -> bool:
        """Whether the reply arrives unchanged, instead of at the backend."""
        result = self.datapath.run(self._way_in, self.answer, ifindex=self.ifindex)
        if target_of(result.packet) == self.backend:
            return False
        assert result.verdict is Verdict.PASS
        assert_same(result.packet, self.answer)
        return True

    def age(self, seconds: int) -> None:
        """Make the last datagram this much older."""
        then = time.monotonic_ns() - seconds * 10**9
        self.datapath.write_entry(self.key, last_seen=then)


def external_ip_of_node(datapath: Datapath, kind: Kind, backends: Sequence[int]) -> End:
    """An external IP that is also the node's address."""
    end = End(kind.net.node, 5060)
    kind_of = FrontendTypeCode.LB_EXTERNAL_IP
    datapath.frontend(end, kind.proto, local=backends, others=backends, kind=kind_of)
    flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT | AddrFlag.LB_ADDR_EXTERNAL
    datapath.address(end.address, flags)
    return end


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[node_port, external_ip_of_node])
def asking(
    datapath: Datapath, node: Node, udp: Kind, way: str, request: pytest.FixtureRequest
) -> Asking:
    return Asking(datapath, node, udp, way, request.param)


def test_what_comes_to_a_connected_socket_is_no_request(asking: Asking):
    """For example because the query was sent before this node's programs were attached."""
    family = AF_INET if asking.kind.net is IPV4 else AF_INET6
    with socket(family, SOCK_DGRAM) as own:
        own.bind(asking.own)
        own.connect(asking.peer)
        assert asking.hears()
    assert not asking.hears()


def test_an_answer_goes_to_who_asked(asking: Asking):
    asking.ask()
    assert [asking.hears() for _ in range(3)] == [True] * 3


def test_without_a_question_it_is_a_request(asking: Asking):
    assert not asking.hears()


def test_an_answer_of_another_server_is_a_request(asking: Asking):
    asking.ask()
    asking.peer = asking.peer._replace(port=CLIENT_PORT + 1)
    assert not asking.hears()


@pytest.mark.parametrize("heard", [0, 1], ids=["unanswered", "answered"])
def test_an_answer_that_is_too_late_is_a_request(asking: Asking, heard):
    asking.ask()
    limit = STREAM_TIMEOUT if heard else TIMEOUT
    assert [asking.hears() for _ in range(heard)] == [True] * heard
    asking.age(limit - 1)
    assert asking.hears()
    asking.age(STREAM_TIMEOUT + 1)
    assert not asking.hears()
    assert not asking.hears()


def test_each_question_keeps_the_way_open(asking: Asking):
    asking.ask()
    asking.age(TIMEOUT - 1)
    asking.ask()
    entry = asking.datapath.short()[asking.key]
    assert time.monotonic_ns() - entry.last_seen < (TIMEOUT - 1) * 10**9
    assert entry.hook == Hook.LB_HOOK_RESERVED


def test_what_the_service_itself_answers_opens_nothing(asking: Asking):
    assert not asking.hears()
    before = asking.datapath.short()
    asking.ask()
    assert asking.datapath.short().keys() == before.keys()
    assert not asking.hears()


def test_the_agent_leaves_it_when_it_reserves_for_other_nat(asking: Asking):
    asking.ask()
    maps, address = asking.datapath.maps, parse_address(asking.own.address)
    Reservations(maps, (30000, 32767), connections=lambda: iter(())).renew({address})
    assert asking.hears()


def test_other_ports_and_addresses_are_left_alone(asking: Asking):
    kind, net = asking.kind, asking.kind.net
    port = asking.own.port
    for source in (End(net.node, port + 1), End(net.local, port)):
        packet = kind.frame(source, asking.peer)
        assert_untouched(asking.datapath, asking.way_out, packet, ifindex=asking.ifindex)
