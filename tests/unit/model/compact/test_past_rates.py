# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace

import pytest

from ebpflb.model.compact import compact, from_compact
from ebpflb.model.compact.past_rates import (
    PastRates,
    RecordedTime,
    decode_past,
    of_records,
    together,
)
from tests.unit.model.compact.rates import backend, service

BEGIN, END = "2026-11-24T02:09:00.000000000Z", "2026-11-24T02:10:00.000000000Z"


def known(**fields):
    return RecordedTime(begin=BEGIN, end=END, **fields)


@pytest.mark.parametrize(
    ("nodes", "every"),
    [
        ((), known()),
        ((known(count=2, lost=3), known(count=5, lost=1)), known(count=7, lost=4)),
        ((known(lost=3), known(lost=None), known(lost=1)), known(lost=None)),
        ((known(sample=10), known(sample=1)), known(sample=10)),
        ((known(sample=0), known(sample=10)), known(sample=0)),
        ((known(sample=10), known(sample=0)), known(sample=0)),
        ((known(oldest=BEGIN), known(oldest=END), known()), known(oldest=END)),
    ],
)
def test_all_nodes_know_as_much_as_the_one_that_knows_least(nodes, every):
    assert together(BEGIN, END, nodes) == every


def test_what_records_do_not_tell_is_none_and_the_rest_stays():
    of_backend = backend("10.1.0.1", connections=3.0, active=2, share=1.0)
    given = service(of_backend, connections=3.0, active=2, cross_node_share=0.5, troubles=("x",))
    unknown = {"active": None, "endpoints": None, "largest_share": None, "even_share": None}
    seen = (replace(of_backend, active=None, share=None),)
    assert of_records(given) == replace(given, backends=seen, **unknown)


def test_an_answer_is_read_as_it_was_written():
    past = PastRates(known(count=1, lost=None), [of_records(service(backend("10.1.0.1")))])
    assert decode_past(from_compact(compact(past))) == past
