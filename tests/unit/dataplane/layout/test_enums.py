# SPDX-License-Identifier: Apache-2.0
"""The enums of bpf/ and their texts agree."""

import pytest

from ebpflb.dataplane.layout.enums import (
    FlowEnd,
    FlowEvent,
    FrontendTypeCode,
    IfEmptyCode,
    SchedulerCode,
    codes,
    word,
)
from ebpflb.model.plan import FrontendType, IfEmpty
from ebpflb.words.connections import FAILURES, FLOW_EVENTS
from ebpflb.words.scheduler import Scheduler


@pytest.mark.parametrize(
    ("words", "mirror"),
    [(Scheduler, SchedulerCode), (FrontendType, FrontendTypeCode), (IfEmpty, IfEmptyCode)],
)
def test_every_number_has_a_namesake_in_the_model(words, mirror):
    assert sorted(codes(words, mirror).values()) == sorted(mirror)


def test_the_words_of_flow_records_are_those_that_users_may_ask_for():
    assert [word(each) for each in FlowEvent] == list(FLOW_EVENTS)
    assert {*FAILURES} < {word(each) for each in FlowEnd}
