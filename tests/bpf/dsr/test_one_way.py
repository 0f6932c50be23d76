# SPDX-License-Identifier: Apache-2.0
"""Flows seen in one direction only never evict other flows, however many of them begin."""

from collections.abc import Iterable, Iterator

import pytest

from ebpflb.dataplane.layout.enums import SchedulerCode
from tests.bpf.dsr.sent import assert_sent, hashed
from tests.bpf.dsr.tunnel import pod_elsewhere, pod_here, served, wrapped
from tests.bpf.flows.held import Held, UdpSessions
from tests.bpf.harness.datapath import Datapath, Result, Verdict
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, SEQUENCE, TCP_KINDS, Kind
from tests.bpf.harness.services import client

FLOWS = range(50_000, 50_020)
FLOOD = range(1024, 1024 + 2 * SIZES.ct_short)


class OneWay:
    """Clients of a pod on another node, seen by tc or by XDP."""

    def __init__(self, datapath: Datapath, node: Node, kind: Kind, *, at_xdp: bool) -> None:
        self._datapath, self._node, self._kind = datapath, node, kind
        datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500, xdp=True)
        self._pod, self.index = pod_elsewhere(datapath, kind)
        self._frontend = served(datapath, kind, self.index)
        self._at_xdp = at_xdp

    def last(self, ports: Iterable[int]) -> None:
        """The flows from these ports that count as established."""
        for flags in ("S", "A", "PA", "A") if self._kind in TCP_KINDS else ("S", "S"):
            for port in ports:
                self._send(self._frame(port, flags))
            for key in self._datapath.short():
                self._datapath.write_entry(key, created=1)

    def flood(self, ports: Iterable[int], *steps: str) -> None:
        """Send packets of flows from all these ports, one step of every flow at a time."""
        frames = [self._frame(FLOWS.start, flags) for flags in steps]
        for port in ports:
            for frame in frames:
                at = frame.index(FLOWS.start.to_bytes(2, "big"))
                self._send(frame[:at] + port.to_bytes(2, "big") + frame[at + 2 :])

    def assert_all_go_on(self, ports: Iterable[int]) -> None:
        """Asserts that established flows keep their backend. A UDP flow that began again would get
        it too.
        """
        before = self._datapath.counts("lb_count_front", 1)
        for port in ports:
            frame = self._kind.frame(client(self._kind, port), self._frontend, "PA")
            result = self._datapath.run("lb_host_ingress", frame, ifindex=self._node.uplink.ifindex)
            assert_sent(self._kind, result, frame, self._pod)
        assert self._datapath.counts("lb_count_front", 1) == before

    def _frame(self, port: int, flags: str) -> bytes:
        source = client(self._kind, port)
        return bytes(self._kind.frame(source, self._frontend, flags, payload=b"x"))

    def _send(self, frame: bytes) -> None:
        ifindex = self._node.uplink.ifindex
        if self._at_xdp:
            self._datapath.run_xdp(frame, ifindex=ifindex)
        else:
            self._datapath.run_bytes("lb_host_ingress", frame, ifindex=ifindex)


@pytest.fixture
def one_way(
    dsr: Datapath, node: Node, kind: Kind, one_cpu: None, request: pytest.FixtureRequest
) -> OneWay:
    return OneWay(dsr, node, kind, at_xdp=getattr(request, "param", "tc") == "xdp")


@pytest.fixture
def both_ways(dsr: Datapath, node: Node, kind: Kind, one_way: OneWay) -> Iterator[None]:
    """Established flows of which this node sees both directions, and which must keep working."""
    flows: Held | UdpSessions
    if kind in TCP_KINDS:
        flows = Held(dsr, node, kind)
        for port in FLOWS:
            flows.establish(port)
    else:
        flows = UdpSessions(dsr, node, kind)
        flows.become_streams()
    before = set(dsr.established())
    assert len(before) == 2 * len(FLOWS)
    yield
    assert set(dsr.established()) == before
    flows.assert_all_go_on()


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("one_way", ["tc", "xdp"], indirect=True)
def test_clients_that_only_begin_cost_no_flow_that_lasts(
    dsr: Datapath, kind: Kind, one_way: OneWay
):
    one_way.last(FLOWS)
    lasting = set(dsr.tunneled())
    assert len(lasting) == len(FLOWS)
    one_way.flood(FLOOD, *(("S", "A") if kind in TCP_KINDS else ("S",)))
    assert set(dsr.tunneled()) == lasting
    assert 0 < len(dsr.short()) <= 2 * SIZES.ct_short
    one_way.assert_all_go_on(FLOWS)


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", TCP_KINDS, ids=str)
def test_even_those_that_last_cost_only_each_other(dsr: Datapath, one_way: OneWay):
    one_way.flood(FLOOD, "S", "A", "A", "A")
    assert 0 < len(dsr.tunneled()) <= SIZES.ct_dsr


@pytest.mark.usefixtures("both_ways")
@pytest.mark.parametrize("kind", TCP_KINDS, ids=str)
def test_the_middle_of_unknown_connections_costs_no_flow_that_lasts(dsr: Datapath, one_way: OneWay):
    one_way.last(FLOWS)
    lasting = set(dsr.tunneled())
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [one_way.index] * 7)
    one_way.flood(FLOOD, "A", "A")
    assert set(dsr.tunneled()) == lasting
    one_way.assert_all_go_on(FLOWS)


def test_at_the_pods_node_only_what_the_pod_answers_establishes(
    dsr: Datapath, node: Node, kind: Kind
):
    pod, index = pod_here(dsr, kind)
    frontend = served(dsr, kind, index)
    ifindex = node.uplink.ifindex

    def request(flags: str, ack: int = SEQUENCE + 1) -> Result:
        inner = kind.frame(client(kind), frontend, flags, payload=b"x", ack=ack)
        return dsr.run("lb_host_ingress", wrapped(kind, inner, pod), ifindex=ifindex)

    request("S")
    for key in dsr.short():
        dsr.write_entry(key, created=1)
    for _ in range(5):
        assert request("A").verdict is Verdict.PASS
    assert not dsr.established() | dsr.tunneled()
    dsr.run("lb_host_egress", kind.frame(pod, client(kind), "SA", payload=b""), ifindex=ifindex)
    if kind in TCP_KINDS:
        request("A", ack=12345)
        assert not dsr.established()
    request("A")
    assert len(dsr.established()) == 2
    assert not dsr.tunneled()
