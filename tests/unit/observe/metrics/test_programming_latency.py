# SPDX-License-Identifier: Apache-2.0
from sys import byteorder

import pytest

from ebpflb.dataplane.layout.structs import LbCounts
from ebpflb.dataplane.services.sync import Sync
from ebpflb.observe.metrics.programming_latency import PATIENCE_SECONDS, FirstConnections
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend

POD, NEW_POD = "10.1.0.1", "10.1.0.2"


class World:
    def __init__(self) -> None:
        self.now = 100.0
        self.told: list[float] = []
        self.renew()
        self.first = FirstConnections(self.told.append, lambda: self.now)

    def renew(self) -> None:
        self.maps = memory_maps()
        self.sync = Sync(self.maps, quiesce=lambda: None, clock=lambda: self.now)

    def serve(self, *pods: str) -> None:
        self.sync.apply(by_service(frontend(choice=backends(*pods))))

    def connect(self, place: int) -> None:
        """The second CPU counts."""
        value = bytes(LbCounts()) + bytes(LbCounts(connections=1))
        self.maps["lb_count_back"].update(place.to_bytes(4, byteorder), value)

    def check(self, seconds: float = 0.0, written: float | None = None) -> bool:
        self.now += seconds
        return self.first.check(self.maps, written)


@pytest.fixture
def world():
    made = World()
    made.serve(POD)
    assert not made.check()
    return made


def test_a_new_endpoint_waits_for_its_first_connection(world):
    world.serve(POD, NEW_POD)
    assert world.check(1.0, written=100.5)
    world.connect(1)
    assert not world.check(2.0)
    assert world.told == [2.5]
    assert not world.check(1.0)
    assert world.told == [2.5]


def test_those_that_were_there_at_first_do_not_count(world):
    world.connect(0)
    assert not world.check(1.0, written=100.5)
    assert world.told == []


def test_an_endpoint_that_goes_or_waits_too_long_is_let_go(world):
    world.serve(POD, NEW_POD)
    assert world.check(written=100.0)
    assert not world.check(PATIENCE_SECONDS + 1)
    world.serve(POD)
    assert not world.check(written=world.now)
    world.serve(POD, NEW_POD)
    assert world.check(written=world.now)
    world.serve(POD)
    assert not world.check(written=world.now)
    assert world.told == []


def test_other_maps_are_a_new_beginning(world):
    world.renew()
    world.serve(POD, NEW_POD)
    world.connect(1)
    assert not world.check(1.0, written=100.5)
    assert world.told == []
