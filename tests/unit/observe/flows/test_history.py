# SPDX-License-Identifier: Apache-2.0
import threading
import time

from ebpflb.observe.flows.history import FlowHistory, NumberedRecords


def filled(size, *records):
    history: FlowHistory[str] = FlowHistory(size)
    history.add(records)
    return history


def test_records_are_numbered_as_they_come():
    history = filled(10, "a", "b")
    history.add(["c"])
    assert history.end == 3
    assert history.since(0) == NumberedRecords(0, ["a", "b", "c"], 0)
    assert history.since(2) == NumberedRecords(2, ["c"], 0)
    assert history.since(3) == NumberedRecords(3, [], 0)
    assert history.since(2).end == 3


def test_the_oldest_go_and_who_comes_late_learns_how_many():
    history = filled(3, *"abcde")
    assert history.since(0) == NumberedRecords(2, list("cde"), 2)
    assert history.since(4) == NumberedRecords(4, ["e"], 0)
    history.add("fghijkl")
    assert history.since(4) == NumberedRecords(9, list("jkl"), 5)


def test_a_reader_waits_for_the_next_record():
    history = filled(3, "a")
    threading.Timer(0.05, history.add, [["b"]]).start()
    assert history.since(1, wait=60).records == ["b"]


def test_waiting_has_an_end():
    began = time.monotonic()
    assert filled(3, "a").since(1, wait=0.05).records == []
    assert time.monotonic() - began > 0.04


def test_who_wants_what_is_there_does_not_wait():
    assert filled(3, "a").since(0, wait=100_000).records == ["a"]
