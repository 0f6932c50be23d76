# SPDX-License-Identifier: Apache-2.0
from sys import byteorder
from typing import Any

import pytest

from ebpflb.dataplane.layout.enums import FlowLost
from ebpflb.errors import MapError
from ebpflb.observe.flows import pipeline
from ebpflb.observe.flows.pipeline import LostInKernel, RingReader
from tests.memory_maps import memory_maps
from tests.unit.observe.flows.ring import Ring

RATE_LIMIT = FlowLost.LB_LOST_RATE.to_bytes(4, byteorder)


def reading(*batches: object) -> Any:
    """A ring that gives these one by one."""
    return Ring(*batches)


@pytest.fixture(autouse=True)
def rings(monkeypatch):
    monkeypatch.setattr(pipeline, "KernelMap", Ring)
    monkeypatch.setattr(pipeline, "FlowRing", lambda source: source)


def test_what_is_there_is_taken_in_order():
    taken: list[bytes] = []
    ring = reading([b"a", b"b"], [b"c"])
    reader = RingReader(lambda: {"lb_flows": ring}, taken.extend)
    reader.poll()
    assert taken == [b"a", b"b", b"c"]
    ring.batches = [[b"d"]]
    reader.poll()
    assert taken[3:] == [b"d"]


@pytest.mark.parametrize("maps", [None, {}, memory_maps({})])
def test_without_a_ring_there_is_nothing_to_read(maps):
    taken: list[bytes] = []
    RingReader(lambda: maps, taken.extend).poll()
    assert taken == []


def test_a_new_ring_is_read_and_the_old_one_for_a_while_too():
    taken: list[bytes] = []
    old, new = reading([b"a"]), reading([b"c"])
    current = {"lb_flows": old}
    reader = RingReader(lambda: current, taken.extend)
    reader.poll()
    current = {"lb_flows": new}
    old.batches = [[b"b"]]
    reader.poll()
    assert taken == [b"a", b"b", b"c"]
    for _ in range(30):
        reader.poll()
    assert old.closed
    assert not new.closed


def test_rings_that_follow_each_other_quickly_are_all_read_to_their_end_and_closed():
    taken: list[bytes] = []
    rings = [reading(), reading(), reading()]
    current: dict[str, Any] = {}
    reader = RingReader(lambda: current, taken.extend)
    for ring in rings:
        current = {"lb_flows": ring}
        reader.poll()
    for ring, record in zip(rings, (b"a", b"b", b"c"), strict=True):
        ring.batches = [[record]]
    for _ in range(30):
        reader.poll()
    assert taken == [b"a", b"b", b"c"]
    assert [ring.closed for ring in rings] == [True, True, False]


def test_a_flood_does_not_keep_the_thread():
    taken: list[bytes] = []
    ring = reading(*[[b"a"]] * 100)
    RingReader(lambda: {"lb_flows": ring}, taken.extend).poll()
    assert 0 < len(taken) < 100


def test_a_ring_that_cannot_be_read_is_reported_once(caplog):
    error = MapError("lb_flows", "reading", 5)
    taken: list[bytes] = []
    ring = reading(error, error, [b"a"])
    reader = RingReader(lambda: {"lb_flows": ring}, taken.extend)
    for _ in range(3):
        reader.poll()
    assert taken == [b"a"]
    (told,) = caplog.records
    assert told.message.startswith("cannot read flow records: map lb_flows: reading failed: ")


def test_the_thread_ends_on_request():
    taken: list[bytes] = []
    ring = reading([b"a"])
    reader = RingReader(lambda: {"lb_flows": ring}, taken.extend)
    reader.start()
    reader.stop()
    assert not reader._thread.is_alive()


def test_records_that_the_kernel_could_not_write_are_told_once():
    maps = memory_maps()
    now: list[Any] = [None]
    lost = LostInKernel(lambda: now[0])

    def count_lost(number):
        maps["lb_flow_lost"].update(RATE_LIMIT, number.to_bytes(8, byteorder).ljust(16, b"\0"))

    assert lost.since_last() == 0
    now[0] = maps
    count_lost(5)
    assert lost.since_last() == 0
    count_lost(7)
    assert [lost.since_last(), lost.since_last()] == [2, 0]
    # A new set of maps counts from 0 again.
    count_lost(3)
    assert lost.since_last() == 3


def test_counters_that_cannot_be_read_tell_nothing(monkeypatch):
    def fail(_):
        raise MapError("lb_flow_lost", "reading", 9)

    monkeypatch.setattr(pipeline, "read_lost", fail)
    assert LostInKernel(memory_maps).since_last() == 0
