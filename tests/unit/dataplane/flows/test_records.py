# SPDX-License-Identifier: Apache-2.0
import ctypes
from sys import byteorder
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.dataplane.flows import records
from ebpflb.dataplane.flows.records import (
    StoredFlow,
    brief,
    client_namespace,
    is_readable,
    with_client,
)
from ebpflb.dataplane.layout.enums import CtFlag, DescFlag, DropReason, FlowEnd, FlowEvent, FlowPath
from ebpflb.dataplane.layout.structs import FLOW_RECORD_VERSION, LbAddr, LbFlowRecord, LbTraffic
from ebpflb.model.address import Family
from ebpflb.model.flow import Directions, Flow, FlowClient, FlowFrontend
from tests.builders import address
from tests.unit.agent.flows import SERVICE, record, refused


def decode(raw: bytes, since_1970: int = 0) -> Flow:
    return records.decode(0, StoredFlow(raw, since_1970), "node")


def test_the_end_of_a_connection():
    flow = decode(record(time=2_500_000_001, started=1_000_000_001), 10**18)
    assert (flow.time, flow.seconds) == ("2001-09-09T01:46:42.500000001Z", 1.5)
    assert (flow.event, flow.verdict, flow.ended, flow.reason) == ("end", "forwarded", "closed", "")
    assert (flow.protocol, flow.family, flow.path) == ("TCP", "IPv4", "socket")
    assert flow.client == FlowClient(address="10.1.0.9", port=40000)
    assert flow.frontend == FlowFrontend(address="10.96.0.10", port=80)
    assert flow.backend
    assert (flow.backend.address, flow.backend.port) == ("10.1.0.1", 8080)
    assert flow.packets == Directions(original=5, reply=4)
    assert flow.bytes == Directions(original=100, reply=2000)
    assert (flow.rtt_seconds, flow.retransmits, flow.source) == (0.00025, 0, "this_node")
    assert flow.policy
    assert (flow.policy.internal, flow.policy.external) == ("Cluster", "Cluster")
    assert (flow.snat, flow.hairpin) == (False, False)


def test_the_end_of_a_flow_at_tc_says_nothing_of_what_only_sockets_know():
    flow = decode(record(path=FlowPath.LB_PATH_TC, rtt=0, end=FlowEnd.LB_END_NO_ANSWER))
    assert (flow.path, flow.ended, flow.rtt_seconds, flow.retransmits) == (
        "tc",
        "no_answer",
        None,
        None,
    )


def test_a_start_has_no_end():
    flow = decode(record(FlowEvent.LB_FLOW_START))
    assert (flow.event, flow.verdict) == ("start", "forwarded")
    assert (flow.ended, flow.seconds, flow.bytes, flow.packets) == ("", None, None, None)


@pytest.mark.parametrize("reason", DropReason)
def test_what_was_refused_has_a_reason_and_no_backend(reason):
    flow = decode(refused(reason=reason))
    assert (flow.event, flow.verdict, flow.backend) == ("refused", "refused", None)
    assert flow.reason == reason.name.removeprefix("LB_DROP_").lower()


def test_flags_become_words():
    flags = DescFlag.LB_DESC_INTERNAL_LOCAL
    flow = decode(record(desc_flags=flags, flow_flags=CtFlag.LB_CT_SNAT | CtFlag.LB_CT_HAIRPIN))
    assert flow.policy
    assert (flow.policy.internal, flow.policy.external) == ("Local", "Cluster")
    assert (flow.snat, flow.hairpin) == (True, True)
    assert decode(refused(service=0)).policy is None


def test_what_is_looked_at_in_each_record():
    pods = address("10.1.0.9"), address("10.1.0.1")
    assert brief(record()) == ("end", 6, *pods, SERVICE)


def test_another_version_or_size_is_not_readable():
    good = record()
    assert is_readable(good)
    assert not is_readable(record(version=FLOW_RECORD_VERSION + 1))
    assert not is_readable(good + bytes(8))
    assert not is_readable(good[:-8])
    assert not is_readable(b"")


@given(st.binary(min_size=ctypes.sizeof(LbFlowRecord), max_size=ctypes.sizeof(LbFlowRecord)))
def test_whatever_a_record_holds_it_can_be_reported(content):
    flow = decode(bytes([FLOW_RECORD_VERSION]) + content[1:])
    assert flow.verdict in ("forwarded", "refused", "dropped")
    assert flow.seconds is None or flow.seconds >= 0


def test_of_udp_at_the_socket_neither_bytes_nor_time_are_known():
    none: dict[str, Any] = {
        "original": LbTraffic(),
        "reply": LbTraffic(),
        "started": 0,
        "rtt": 0,
    }
    flow = decode(record(proto=17, client_port=0, **none))
    assert (flow.protocol, flow.path, flow.ended) == ("UDP", "socket", "closed")
    assert (flow.seconds, flow.bytes, flow.packets, flow.retransmits) == (None, None, None, None)
    assert flow.client == FlowClient(address="10.1.0.9")


def namespace(family, cookie=9):
    """As lb_sock_client_get() writes it."""
    return LbAddr.from_buffer_copy(family.to_bytes(8, "big") + cookie.to_bytes(8, byteorder))


@pytest.mark.parametrize("family", Family)
def test_a_client_may_be_a_namespace(family):
    raw = refused(client=namespace(family), client_port=0)
    assert client_namespace(raw) == (9, family)
    known = with_client(raw, address("10.1.0.9"))
    assert client_namespace(known) is None
    assert known == refused(client="10.1.0.9", client_port=0, **_times(raw))


def _times(raw):
    found = LbFlowRecord.from_buffer_copy(raw)
    return {"time": found.time, "started": found.started}


@pytest.mark.parametrize(
    "fields",
    [
        {"client": namespace(4), "client_port": 1},
        {"client": namespace(4), "client_port": 0, "path": FlowPath.LB_PATH_TC},
        {"client": namespace(5), "client_port": 0},
        {"client": LbAddr(), "client_port": 0},
        {"client": "10.1.0.9", "client_port": 0},
        {"client": "fd00::6", "client_port": 0},
    ],
)
def test_a_packet_cannot_look_like_a_namespace(fields):
    assert client_namespace(refused(**fields)) is None
