# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.layout.records import frontend_key_of
from ebpflb.dataplane.layout.structs import LbCounts, u32
from ebpflb.dataplane.view.snapshot import SnapshotReader, read_snapshot
from ebpflb.model.address import WILDCARD, Family, Protocol
from ebpflb.model.flow import Counts
from ebpflb.model.plan import FrontendKey, FrontendType
from tests.unit.dataplane.desired import backends, by_service, frontend, key, named
from tests.unit.dataplane.programs import look_up
from tests.unit.dataplane.world import World

POD, OTHER_POD = FrontendKey(key("10.1.0.1")[0], 8080, Protocol.TCP), key("10.1.0.2", 8080)
NODE_PORT = FrontendKey(WILDCARD[Family.IPV4], 30000, Protocol.TCP)


@pytest.fixture
def world() -> World:
    world = World()
    choice = backends("10.1.0.1", "10.1.0.2")
    node_port = frontend(key=NODE_PORT, type=FrontendType.NODE_PORT, service=named("b"))
    world.change(by_service(frontend(choice=choice), node_port))
    return world


def count(world: World, name: str, index: int, *cpus: tuple[int, int, int]) -> None:
    value = b"".join(bytes(LbCounts(*each)) for each in cpus)
    world.maps[name].update(bytes(u32(index)), value)


def frontend_counts(world: World):
    snapshot = read_snapshot(world.maps)
    return {
        (frontend_key_of(each.key), each.service): snapshot.counts_of_frontend(each)
        for each in snapshot.frontends
    }


def backend_counts(world: World):
    snapshot = read_snapshot(world.maps)
    return [
        (
            FrontendKey(each.address, each.port, Protocol(each.protocol)),
            service,
            each.usable,
            snapshot.counts_of_backend(each),
        )
        for service, group in snapshot.backends.items()
        for each in group
    ]


def test_a_reader_takes_over_what_has_not_changed(world: World):
    reader = SnapshotReader()
    first, second = reader.read(world.maps), reader.read(world.maps)
    assert second.backends is first.backends
    assert second.frontends == first.frontends
    world.sync.apply(by_service(frontend(choice=backends("10.1.0.1"))))
    third = reader.read(world.maps)
    assert third == read_snapshot(world.maps) != second


def test_the_numbers_of_the_kernel_have_their_names_in_its_order():
    numbers = LbCounts(1, 2, 3, 4, 5, (6, 7), (8, 9), 10)
    counts = Counts(*memoryview(bytes(numbers)).cast("Q"))
    for name in ("connections", "refused", "dropped", "failed", "retransmits", "retried"):
        assert getattr(counts, name) == getattr(numbers, name)
    for name in ("original", "reply"):
        shown = getattr(counts, f"{name}_packets"), getattr(counts, f"{name}_bytes")
        assert shown == (getattr(numbers, name).packets, getattr(numbers, name).bytes)


def test_the_counters_of_a_frontend_are_those_of_all_cpus(world: World):
    found = look_up(world.maps, NODE_PORT)
    assert found
    count(world, "lb_count_front", found.place, (1, 2, 3), (10, 20, 30))
    assert frontend_counts(world) == {
        (key("10.96.0.1"), named("web")): Counts(0, 0, 0),
        (NODE_PORT, named("b")): Counts(11, 22, 33),
    }


def test_the_counters_of_a_backend_are_those_of_all_cpus(world: World):
    count(world, "lb_count_back", 1, (1, 0, 0), (2, 0, 0))
    assert backend_counts(world) == [
        (POD, named("web"), True, Counts(0, 0, 0)),
        (OTHER_POD, named("web"), True, Counts(3, 0, 0)),
    ]


def test_a_backend_that_is_gone_keeps_its_counts(world: World):
    count(world, "lb_count_back", 1, (1, 0, 0), (0, 0, 0))
    world.sync.apply(by_service(frontend()))
    assert backend_counts(world) == [
        (POD, named("web"), False, Counts(0, 0, 0)),
        (OTHER_POD, named("web"), False, Counts(1, 0, 0)),
    ]


def test_what_has_lost_its_name_is_not_shown(world: World):
    count(world, "lb_count_back", 1, (1, 0, 0), (0, 0, 0))
    world.maps["lb_names"].delete_batch([key for key, _ in world.maps["lb_names"].items()])
    assert backend_counts(world) == []
    assert frontend_counts(world) == {}
    assert not read_snapshot(world.maps).is_whole
