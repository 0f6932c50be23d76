# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.flows.expiry import end_record
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Direction, FlowEnd, FlowSource, Hook
from ebpflb.dataplane.layout.structs import LbAddr, LbConntrack, LbTraffic, LbTuple

CLIENT, FRONTEND, NODE, BACKEND = (LbAddr((0, 0, 0xFFFF, number)) for number in (1, 2, 3, 4))
KEY = LbTuple(CLIENT, FRONTEND, 1000, 80, 17)
ANSWER = LbTuple(BACKEND, NODE, 8080, 2000, 17)


def original(**changes) -> LbConntrack:
    fields = {"hook": Hook.LB_HOOK_HOST_INGRESS, "flags": CtFlag.LB_CT_SAMPLED} | changes
    return LbConntrack(
        to=LbTuple(NODE, BACKEND, 2000, 8080, 17),
        created=5,
        packets=2,
        bytes=20,
        service=7,
        direction=Direction.LB_DIR_ORIGINAL,
        **fields,
    )


def reply(packets: int) -> LbConntrack:
    to = LbTuple(FRONTEND, CLIENT, 80, 1000, 17)
    return LbConntrack(to=to, packets=packets, bytes=3, direction=Direction.LB_DIR_REPLY)


@pytest.mark.parametrize(
    ("answers", "end"), [(1, FlowEnd.LB_END_TIMED_OUT), (0, FlowEnd.LB_END_NO_ANSWER)]
)
def test_both_directions_report_the_same_of_their_flow(answers, end):
    one, other = bytes(original()), bytes(reply(answers))
    record = end_record(bytes(KEY), one, other, 9)
    assert record == end_record(bytes(ANSWER), other, one, 9)
    assert record is not None
    assert (record.end, record.started, record.time) == (end, 5, 9)
    assert (record.client, record.client_port) == (CLIENT, 1000)
    assert (record.frontend, record.frontend_port) == (FRONTEND, 80)
    assert (record.backend_addr, record.backend_port) == (BACKEND, 8080)
    assert (record.original, record.reply) == (LbTraffic(2, 20), LbTraffic(answers, 3))
    assert record.source == FlowSource.LB_FROM_ELSEWHERE


@pytest.mark.parametrize(
    "changes",
    [{"state": CtState.LB_CT_ENDED}, {"flags": 0}, {"hook": Hook.LB_HOOK_RESERVED}],
    ids=["told of before", "not sampled", "no flow"],
)
def test_nothing_is_reported_about_others(changes):
    assert end_record(bytes(KEY), bytes(original(**changes)), None, 9) is None


def test_replies_alone_do_not_say_what_their_flow_was():
    assert end_record(bytes(ANSWER), bytes(reply(1)), None, 9) is None
