# SPDX-License-Identifier: Apache-2.0
"""Tuples that another NAT of the node uses are never allocated, and their packets pass."""

from collections.abc import Collection

import pytest

from ebpflb.dataplane.flows.source_ports import Reservations
from ebpflb.dataplane.kernel.ctnetlink import Reply
from ebpflb.dataplane.layout.enums import DropReason
from ebpflb.model.address import Protocol, parse_address
from tests.bpf.harness.datapath import Datapath, Result, Verdict, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, source_of
from tests.bpf.harness.services import (
    CLIENT_PORT,
    cluster_ip,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

# Sixteen random tries all miss OURS once in 10^15 runs.
OURS, OTHERS = range(2000, 2008), 3000
PORTS = ((OURS[0], OURS[-1]), (OTHERS, OTHERS))
# One client in five misses the last free port; all of them do once in 10^30 runs.
MANY = 60


class Beside:
    """A NodePort with a remote backend, to which another NAT has a connection from OTHERS."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind) -> None:
        self.datapath, self.node, self.kind = datapath, node, kind
        node_addresses(datapath, node)
        datapath.settings(snat_ports=PORTS)
        self.backend, index = remote_backend(datapath, kind)
        self.frontend = node_port(datapath, kind, [index])
        self.reserve({OTHERS})

    def reserve(self, ports: Collection[int], source: End | None = None, node: str = "") -> None:
        """Set exactly these ports of the node as used by others towards a backend."""
        source = source or self.backend
        address = parse_address(node or self.kind.net.overlay)
        ends = parse_address(source.address), source.port, address
        found = [Reply(self.kind.proto, *ends, port) for port in ports]
        Reservations(self.datapath.maps, (30000, 32767), connections=lambda: iter([found])).renew(
            {address}
        )

    def send(self, port: int) -> Result:
        """A client opens a connection."""
        request = self.kind.frame(End(self.kind.net.client, port), self.frontend)
        return self.datapath.run("lb_host_ingress", request, ifindex=self.node.uplink.ifindex)

    def source(self, port: int) -> int:
        """The port that its packets are masqueraded with."""
        result = self.send(port)
        assert result.verdict is Verdict.REDIRECT
        return source_of(result.packet).port

    def given(self) -> list[int]:
        """The ports that many clients get, some of which find none free."""
        found = []
        for port in range(10000, 10000 + MANY):
            result = self.send(port)
            if result.verdict is Verdict.REDIRECT:
                found.append(source_of(result.packet).port)
                self.datapath.keep_young()
        return sorted(found)


@pytest.fixture
def beside(datapath: Datapath, node: Node, kind: Kind) -> Beside:
    return Beside(datapath, node, kind)


def test_a_reserved_port_is_never_given_out(beside: Beside):
    assert beside.given() == [*OURS]
    assert beside.datapath.drops() == {DropReason.LB_DROP_SNAT_PORTS: MANY - len(OURS)}


def test_it_is_given_out_to_another_backend(beside: Beside):
    datapath = beside.datapath
    datapath.settings(snat_ports=((OTHERS, OTHERS), (OTHERS, OTHERS)))
    new = datapath.backend(End(beside.kind.net.remote, 9999), beside.kind.proto)
    datapath.replace_backends(1, new)
    assert beside.source(10000) == OTHERS


def test_it_is_given_out_when_the_other_connection_has_ended(beside: Beside):
    beside.reserve({})
    assert beside.given() == [*OURS, OTHERS]


@pytest.mark.parametrize("flags", ["SA", "A", "PA", "FA", "R"])
@pytest.mark.parametrize("program", ["lb_host_ingress", "lb_host_egress", "lb_pod_ingress"])
def test_replies_of_the_other_connection_pass_untouched(beside: Beside, program, flags):
    beside.source(10000)  # From here on, packets of the backend are inspected.
    reply = beside.kind.frame(beside.backend, End(beside.kind.net.overlay, OTHERS), flags)
    assert_untouched(beside.datapath, program, reply, ifindex=beside.node.overlay.ifindex)


@pytest.mark.parametrize("flags", ["A", "PA", "FA", "R"])
def test_requests_of_the_other_connection_pass_untouched(
    datapath: Datapath, node: Node, tcp: Kind, flags
):
    beside = Beside(datapath, node, tcp)
    request = tcp.frame(End(tcp.net.client, CLIENT_PORT), beside.frontend, flags)
    assert_untouched(datapath, "lb_host_ingress", request, ifindex=node.uplink.ifindex)


def test_what_the_node_sends_on_the_other_connection_passes_untouched(beside: Beside):
    beside.source(10000)
    sent = beside.kind.frame(End(beside.kind.net.overlay, OTHERS), beside.backend, "A")
    assert_untouched(beside.datapath, "lb_host_egress", sent, ifindex=beside.node.overlay.ifindex)


def test_a_pod_that_reaches_itself_gets_no_reserved_port(
    datapath: Datapath, node: Node, kind: Kind
):
    beside = Beside(datapath, node, kind)
    itself = End(kind.net.pod, 8080)
    frontend = cluster_ip(datapath, kind, [datapath.backend(itself, kind.proto)])
    beside.reserve({OTHERS}, itself, kind.net.node)
    results = [
        datapath.run("lb_pod_ingress", kind.frame(pod(kind, 10000 + i), frontend))
        for i in range(20)
    ]
    redirected = [each for each in results if each.verdict is Verdict.REDIRECT]
    assert redirected
    assert {source_of(each.packet).port for each in redirected} <= {*OURS}


def test_udp_is_reserved_however_long_it_is_silent(datapath: Datapath, node: Node, udp: Kind):
    beside = Beside(datapath, node, udp)
    datapath.settings(snat_ports=PORTS)
    assert udp.proto is Protocol.UDP
    for number in range(20):
        assert beside.source(10000 + number) in OURS
        for key in datapath.short():
            datapath.write_entry(key, last_seen=1)
