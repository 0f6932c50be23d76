# SPDX-License-Identifier: Apache-2.0
"""UDP flows keep a backend that gets no new flows, as long as its endpoint serves."""

from contextlib import suppress
from dataclasses import replace
from itertools import count

import pytest

from ebpflb.dataplane.layout.enums import BackendFlag
from ebpflb.dataplane.services.sync import Moving
from ebpflb.model.address import Protocol
from ebpflb.model.plan import Choice, Frontend
from ebpflb.model.service import ServicePortName
from tests.unit.dataplane.desired import NOTHING, backends, by_service, frontend, key
from tests.unit.dataplane.programs import backend, look_up, place
from tests.unit.dataplane.watching import CrashError
from tests.unit.dataplane.world import World

USABLE, SERVING = BackendFlag.LB_BACKEND_USABLE, BackendFlag.LB_BACKEND_SERVING
TERMINATING = BackendFlag.LB_BACKEND_TERMINATING
FIRST, SECOND = "10.1.0.1", "10.1.0.2"
KEY = key("10.96.0.1", 53, Protocol.UDP)


def dns(choice: Choice, serving: Choice = NOTHING) -> Frontend:
    name = ServicePortName("default", "web", "", Protocol.UDP)
    return frontend(choice=choice, key=KEY, service=name, serving=serving.backends)


def change(world: World, *frontends: Frontend) -> None:
    """Give the sync this as all there is."""
    world.sync.resync(by_service(*frontends))


@pytest.fixture
def world() -> World:
    """The first backend is in use."""
    made = World()
    change(made, dns(backends(FIRST)))
    made.sync.take_ended_udp()
    return made


def index_in_use(world: World, of: Frontend | None = None) -> int:
    found = look_up(world.maps, of.key if of else KEY)
    assert found
    (index,) = found.backends
    return index


def flags(world: World, index: int) -> int:
    return int(backend(world.maps, index).flags)


def test_a_backend_that_serves_keeps_its_index_when_no_range_names_it(world: World):
    index = index_in_use(world)
    before = backend(world.maps, index)
    change(world, dns(backends(SECOND), serving=backends(FIRST, terminating=True)))
    after = backend(world.maps, index)
    assert after.flags == SERVING | TERMINATING
    assert (place(after), after.serial) == (place(before), before.serial)
    assert index_in_use(world) != index
    assert not world.sync.take_ended_udp()


def test_both_families_of_a_port_keep_theirs(world: World):
    other = replace(dns(backends("fd00:1::1")), key=key("fd00::1", 53, Protocol.UDP))
    change(world, dns(backends(FIRST)), other)
    before = {index_in_use(world), index_in_use(world, other)}
    other = replace(other, local=NOTHING, others=NOTHING, serving=other.local.backends)
    change(world, dns(NOTHING, serving=backends(FIRST)), other)
    assert {flags(world, index) for index in before} == {SERVING}


def test_a_backend_that_stops_serving_is_gone(world: World):
    index = index_in_use(world)
    change(world, dns(backends(SECOND), serving=backends(FIRST)))
    change(world, dns(backends(SECOND)))
    assert flags(world, index) == 0
    assert world.sync.take_ended_udp()
    assert not world.sync.take_ended_udp()


def test_a_backend_that_is_kept_is_used_again_as_the_same(world: World):
    index = index_in_use(world)
    change(world, dns(backends(SECOND), serving=backends(FIRST)))
    change(world, dns(backends(FIRST)))
    assert (index_in_use(world), flags(world, index)) == (index, USABLE)


def test_a_backend_that_never_had_a_flow_takes_no_room(world: World):
    change(world, dns(backends(FIRST), serving=backends(SECOND)))
    assert world.sync.usage()["lb_backends"].used == 1


def test_what_is_kept_goes_with_its_service(world: World):
    change(world, dns(backends(SECOND), serving=backends(FIRST)))
    change(world)
    world.now += 10
    world.sync.collect()
    assert world.sync.usage()["lb_backends"].used == 0
    assert world.sync.take_ended_udp()


def test_a_restart_keeps_it_and_writes_nothing(world: World):
    index = index_in_use(world)
    desired = dns(backends(SECOND), serving=backends(FIRST))
    change(world, desired)
    world.sync = world.restarted()
    world.sync.load()
    before = len(world.watch.written)
    change(world, desired)
    assert world.watch.written[before:] == []
    assert flags(world, index) == SERVING
    assert world.sync.usage()["lb_backends"].used == 2


def test_after_a_restart_nobody_knows_what_has_ended_meanwhile(world: World):
    world.sync = world.restarted()
    world.sync.load()
    assert world.sync.take_ended_udp()


def test_the_end_of_a_backend_of_tcp_ends_nothing():
    world = World()
    change(world, frontend(choice=backends(FIRST)))
    world.sync.take_ended_udp()
    change(world, frontend(choice=backends(SECOND)))
    assert not world.sync.take_ended_udp()


@pytest.mark.parametrize("forth", [True, False])
def test_a_crash_at_any_write_leaves_no_wrong_flag(forth: bool):
    out, back = dns(backends(SECOND), serving=backends(FIRST)), dns(backends(FIRST))
    for moment in count():
        world = World()
        world.watch.inspect = lambda: None
        change(world, back if forth else out)
        index = None
        if forth:
            index = index_in_use(world)
        world.watch.crash_at = len(world.watch.written) + moment
        with suppress(CrashError):
            world.restarted().resync(by_service(out if forth else back))
        crashed = len(world.watch.written) >= world.watch.crash_at
        world.watch.crash_at = None
        world.sync = world.restarted()
        change(world, out if forth else back)
        if index is not None:
            assert flags(world, index) == SERVING
        assert flags(world, index_in_use(world)) == USABLE
        if not crashed:
            break


def withdrawn(*addresses: str) -> Frontend:
    """Another proxy serves it; these endpoints serve the flows that they have."""
    return replace(dns(NOTHING, serving=backends(*addresses)), withdrawn=True)


def test_a_service_that_another_proxy_serves_keeps_backends_and_no_frontend(world: World):
    index = index_in_use(world)
    change(world, withdrawn(FIRST, SECOND))
    assert look_up(world.maps, KEY) is None
    assert flags(world, index) == SERVING
    assert not world.sync.take_ended_udp()
    assert world.sync.usage()["lb_backends"].used == 1
    change(world, withdrawn(SECOND))
    assert flags(world, index) == 0
    assert world.sync.take_ended_udp()
    world.now += 10
    world.sync.collect()
    used = {name: each.used for name, each in world.sync.usage().items()}
    del used["lb_addrs"]
    assert set(used.values()) == {0}


def test_one_that_never_was_served_here_takes_no_room(world: World):
    other = ServicePortName("default", "shop", "", Protocol.UDP)
    left = replace(withdrawn(SECOND), service=other, key=key("10.96.0.2", 53, Protocol.UDP))
    change(world, dns(backends(FIRST)), left)
    assert world.sync.usage()["lb_names"].used == 1
    assert world.sync.usage()["lb_backends"].used == 1


def test_one_that_comes_back_finds_its_backends(world: World):
    index, before = index_in_use(world), backend(world.maps, index_in_use(world))
    change(world, withdrawn(FIRST))
    change(world, dns(backends(FIRST)))
    assert (index_in_use(world), flags(world, index)) == (index, USABLE)
    assert backend(world.maps, index).serial == before.serial


def test_a_restart_keeps_what_another_proxy_serves_and_writes_nothing(world: World):
    index = index_in_use(world)
    change(world, withdrawn(FIRST))
    world.sync = world.restarted()
    world.sync.load()
    before = len(world.watch.written)
    change(world, withdrawn(FIRST))
    assert world.watch.written[before:] == []
    assert flags(world, index) == SERVING
    assert world.sync.is_left(1)
    change(world)
    assert flags(world, index) == 0


def test_its_frontend_may_be_another_services(world: World):
    other = ServicePortName("default", "another", "", Protocol.UDP)
    change(world, withdrawn(FIRST), replace(dns(backends(SECOND)), service=other))
    assert look_up(world.maps, KEY)


def test_what_a_change_moves_is_known_before(world: World):
    (identity,) = {backend(world.maps, index_in_use(world)).service}
    left, here = by_service(withdrawn(FIRST)), by_service(dns(backends(FIRST)))
    name = next(iter(here))
    assert world.sync.moving(left) == Moving(False, frozenset([identity]))
    assert world.sync.moving({name: ()}) == Moving(False, frozenset([identity]))
    assert world.sync.moving(here) == Moving(False, frozenset())
    assert not world.sync.is_left(identity)
    change(world, withdrawn(FIRST))
    assert world.sync.is_left(identity)
    assert world.sync.moving(left) == Moving(False, frozenset())
    assert world.sync.moving(here) == Moving(True, frozenset())
