# SPDX-License-Identifier: Apache-2.0
"""Routes and neighbours as the kernel reports them, and what they mean for an endpoint."""

import pytest

from ebpflb.dataplane.explain.reach import NO_ROUTE, Silent, last_failures, trouble, unanswered
from ebpflb.dataplane.flows.records import StoredFlow, decode
from ebpflb.dataplane.kernel.rtnetlink import Neighbour, Route
from ebpflb.dataplane.layout.enums import FlowEnd
from ebpflb.model.address import Protocol, SocketAddress, parse_address
from tests.unit.agent.flows import record, refused

POD, GATEWAY, OTHER = map(parse_address, ("10.2.0.1", "192.0.2.2", "192.0.2.3"))
ONE, TWO = (SocketAddress(parse_address(text), 8080) for text in ("10.1.0.1", "10.1.0.2"))
UPLINK, VETH = 999_999, 999_998


@pytest.mark.parametrize(
    ("way", "silent", "expected"),
    [
        pytest.param(None, [], NO_ROUTE, id="nowhere"),
        pytest.param(Route(UPLINK, False, GATEWAY), [(UPLINK, OTHER)], "", id="another is silent"),
        pytest.param(Route(UPLINK, False, GATEWAY), [(VETH, GATEWAY)], "", id="elsewhere"),
        pytest.param(Route(UPLINK, True), [(UPLINK, POD)], "", id="this node"),
        pytest.param(
            Route(UPLINK, False, GATEWAY),
            [(UPLINK, GATEWAY)],
            f"the next hop 192.0.2.2 on device {UPLINK} does not answer",
            id="the gateway is silent",
        ),
        pytest.param(
            Route(VETH, False),
            [(VETH, POD)],
            f"the next hop 10.2.0.1 on device {VETH} does not answer",
            id="the endpoint is silent",
        ),
    ],
)
def test_what_keeps_packets_from_an_endpoint(way, silent, expected):
    neighbours = [Neighbour(ifindex, address, False) for ifindex, address in silent]
    neighbours.append(Neighbour(UPLINK, POD, is_answering=True))
    assert trouble(POD, lambda _: way, Silent.of(neighbours)) == expected


def decoded(raw):
    return decode(0, StoredFlow(raw, 0), "node")


def flow(end, **fields):
    return decoded(record(end=end, **fields))


def test_a_failure_counts_until_a_connection_succeeds():
    flows = [
        flow(FlowEnd.LB_END_NO_ANSWER),
        flow(FlowEnd.LB_END_BACKEND_REFUSED, backend_addr="10.1.0.2"),
        decoded(refused()),
        flow(FlowEnd.LB_END_CLOSED),
    ]
    assert last_failures(flows) == {TWO: "refused its last connection"}
    assert last_failures(flows[:1]) == {ONE: "did not answer its last connection"}


def test_udp_without_an_answer_may_be_one_way():
    assert not last_failures([flow(FlowEnd.LB_END_NO_ANSWER, proto=Protocol.UDP)])


def test_a_connection_that_stays_unanswered_is_reported():
    opening = {"backend": "10.1.0.1", "backend_port": 8080, "state": "opening"}
    said = "has not accepted this client's connection for 9 s"
    assert unanswered([{**opening, "age": 9.2}]) == {ONE: said}
    assert not unanswered([{**opening, "age": 1.0}])
    assert not unanswered([{**opening, "age": 9.2, "state": "established"}])


def test_neighbours_of_this_namespace_can_be_listed():
    assert isinstance(Silent.now(), Silent)
