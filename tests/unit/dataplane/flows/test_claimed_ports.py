# SPDX-License-Identifier: Apache-2.0
"""Which flows are registered with netfilter, so that it does not allocate their source ports."""

import logging
from collections.abc import Iterable

import pytest

from ebpflb.dataplane.flows.claimed_ports import CLAIM_SECONDS, PERIOD_SECONDS, ClaimedPorts
from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key
from ebpflb.dataplane.kernel.ctnetlink import Reply
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple
from ebpflb.model.address import Protocol, parse_address
from tests.memory_maps import memory_maps

CLIENT, NODE, POD = map(parse_address, ("198.51.100.1", "192.0.2.1", "10.1.0.1"))
TCP, UDP = Protocol.TCP, Protocol.UDP
SNAT, CLOSED = CtFlag.LB_CT_SNAT, CtState.LB_CT_CLOSED
GONE, SERVED = 7, 8


class Kernel:
    """Netfilter, and maps. now: seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.failure: OSError | None = None
        self.told: list[Reply] = []
        self.maps = memory_maps(dict.fromkeys(FLOW_TABLES, 64))
        self.claims = ClaimedPorts(self.maps, add=self.add, clock=lambda: self.now)

    def add(self, flows: Iterable[Reply], seconds: int) -> int:
        assert seconds == CLAIM_SECONDS > PERIOD_SECONDS
        if self.failure:
            raise self.failure
        self.told += flows
        return 1

    def flow(self, table: str, port: int = 2000, protocol: Protocol = TCP, **fields: int) -> None:
        """Both entries of a flow; further keywords are fields of them."""
        both = (
            ((CLIENT, 1), (NODE, 30080), (NODE, port), (POD, 80), Direction.LB_DIR_ORIGINAL),
            ((POD, 80), (NODE, port), (NODE, 30080), (CLIENT, 1), Direction.LB_DIR_REPLY),
        )
        for source, destination, to_source, to_destination, direction in both:
            to = LbTuple.from_buffer_copy(flow_key(to_source, to_destination, protocol))
            made = {"service": GONE, "flags": SNAT, **fields}
            entry = LbConntrack(to=to, direction=direction, **made)
            self.maps[table].update(flow_key(source, destination, protocol), bytes(entry))

    def step(self) -> None:
        while self.claims.step(lambda service: service == GONE):
            pass


@pytest.fixture
def kernel() -> Kernel:
    return Kernel()


@pytest.mark.parametrize(
    ("table", "protocol", "fields", "is_told"),
    [
        pytest.param("lb_conntrack", TCP, {}, True, id="established"),
        pytest.param("lb_ct_short", TCP, {}, True, id="opening"),
        pytest.param("lb_ct_udp", UDP, {}, True, id="UDP"),
        pytest.param("lb_ct_stream", UDP, {}, True, id="stream"),
        pytest.param("lb_ct_short", TCP, {"state": CLOSED}, False, id="closed"),
        pytest.param("lb_ct_short", TCP, {"other_state": CLOSED}, False, id="closed by the peer"),
        pytest.param("lb_conntrack", TCP, {"service": SERVED}, False, id="served"),
        pytest.param("lb_conntrack", TCP, {"flags": 0}, False, id="the client's own port"),
        pytest.param(
            "lb_conntrack", TCP, {"flags": SNAT | CtFlag.LB_CT_HAIRPIN}, False, id="hairpin"
        ),
    ],
)
def test_open_masqueraded_flows_of_services_that_are_gone_are_reported(
    kernel, table, protocol, fields, is_told
):
    kernel.flow(table, protocol=protocol, **fields)
    kernel.claims.claim({GONE}.__contains__)
    assert kernel.told == [Reply(protocol, POD, 80, NODE, 2000)] * is_told


def test_they_are_reported_again_before_they_are_forgotten_and_as_long_as_they_last(kernel):
    kernel.flow("lb_conntrack")
    kernel.claims.claim({GONE}.__contains__)
    kernel.step()
    assert len(kernel.told) == 1
    for rounds in (2, 3):
        kernel.now += PERIOD_SECONDS
        kernel.step()
        kernel.step()
        assert len(kernel.told) == rounds
    kernel.maps["lb_conntrack"].delete_batch(
        [key for key, _ in kernel.maps["lb_conntrack"].items()]
    )
    kernel.now += PERIOD_SECONDS
    kernel.step()
    kernel.flow("lb_conntrack")
    kernel.now += PERIOD_SECONDS
    kernel.step()
    assert len(kernel.told) == 3


def test_a_new_agent_looks_at_once(kernel):
    kernel.flow("lb_conntrack")
    kernel.step()
    assert len(kernel.told) == 1


def test_a_kernel_that_refuses_is_reported_once(kernel, caplog):
    kernel.flow("lb_conntrack")
    kernel.flow("lb_ct_stream", 2001, UDP)
    kernel.failure = PermissionError(1, "Operation not permitted")
    with caplog.at_level(logging.WARNING):
        kernel.claims.claim({GONE}.__contains__)
    (line,) = caplog.messages
    assert line.endswith("which may reuse some: Operation not permitted")
    kernel.failure = None
    kernel.claims.claim({GONE}.__contains__)
    assert len(kernel.told) == 2
