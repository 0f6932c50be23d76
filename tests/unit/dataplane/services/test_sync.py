# SPDX-License-Identifier: Apache-2.0
"""The writes of one change, and their order; test_sync_properties.py has the invariants."""

import gc
import weakref
from ctypes import sizeof
from errno import E2BIG, ENAMETOOLONG, ENOMEM

import pytest

from ebpflb.dataplane.kernel.uapi import Exist
from ebpflb.dataplane.layout.structs import LbBackend, LbCounts
from ebpflb.dataplane.services import transaction
from ebpflb.dataplane.services.sync import Sync
from ebpflb.errors import MapError
from ebpflb.model.address import WILDCARD, Family, Protocol
from ebpflb.model.plan import Choice, Frontend, FrontendKey, FrontendType
from ebpflb.model.service import ServiceName
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import (
    NODE_PORT,
    NOTHING,
    backends,
    by_service,
    frontend,
    key,
    named,
)
from tests.unit.dataplane.programs import TERMINATING, USABLE, Found, address_flags, look_up, place
from tests.unit.dataplane.world import World

WEB = ServiceName("default", "web")
GRACE = 1
POD, OTHER_POD = "10.1.0.1", "10.1.0.2"


@pytest.fixture
def world() -> World:
    return World()


def found(world: World, text: str = "10.96.0.1") -> Found:
    seen = look_up(world.maps, key(text))
    assert seen
    return seen


def backend_indices(world: World) -> set[int]:
    return set(found(world).backends)


def written(world: World, *frontends: Frontend) -> list[str]:
    """The maps that are written for this to be all there is."""
    before = len(world.watch.written)
    world.change(by_service(*frontends))
    return world.watch.written[before:]


def test_a_new_frontend_is_complete_before_it_can_be_seen(world: World):
    assert written(world, frontend(choice=backends(POD, OTHER_POD))) == [
        *["lb_backends"] * 2,
        *["lb_slots"] * 2,
        *["lb_names", "lb_descs", "lb_current", "lb_frontends", "lb_addr_flags", "lb_addrs"],
        *["lb_dest_filter"] * 2,
    ]


def test_no_cpu_sees_a_frontend_before_what_it_names(world: World, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(transaction, "order_writes", lambda: world.watch.written.append("ordered"))
    seen = written(world, frontend(choice=backends(POD)))
    assert seen.index("lb_descs") < seen.index("ordered") < seen.index("lb_current")


def test_a_frontend_that_goes_is_taken_away_in_reverse(world: World):
    world.change(by_service(frontend(choice=backends(POD))))
    assert written(world) == [
        *["lb_addr_flags", "lb_frontends", "lb_current", "lb_backends", "lb_names"],
    ]


def test_other_endpoints_are_one_commit(world: World):
    world.change(by_service(frontend(choice=backends(POD))))
    assert written(world, frontend(choice=backends(OTHER_POD))) == [
        *["lb_backends", "lb_slots", "lb_descs", "lb_current", "lb_backends"],
    ]


def test_what_is_equal_is_not_written(world: World):
    desired = by_service(frontend(choice=backends(POD)))
    world.change(desired)
    before = len(world.watch.written)
    assert world.sync.apply(desired) == {}
    assert world.sync.resync(desired) == {}
    assert world.watch.written[before:] == []


def test_an_endpoint_keeps_its_index_and_serial_while_it_is_used(world: World):
    world.change(by_service(frontend(choice=backends(POD, OTHER_POD))))
    before = found(world).backends
    world.change(by_service(frontend(choice=backends(POD))))
    (index, kept), *none = found(world).backends.items()
    assert before[index] == kept
    assert not none


def test_an_endpoint_that_begins_to_terminate_keeps_its_index_and_range(world: World):
    world.change(by_service(frontend(choice=backends(POD))))
    before = backend_indices(world)
    assert written(world, frontend(choice=backends(POD, terminating=True))) == ["lb_backends"]
    assert backend_indices(world) == before
    (record,) = found(world).backends.values()
    assert record.flags == USABLE | TERMINATING


def test_equal_choices_of_a_service_port_share_a_range(world: World):
    choice = backends(POD, OTHER_POD)
    node_port = frontend(key=NODE_PORT, type=FrontendType.NODE_PORT, choice=choice)
    world.change(by_service(frontend(choice=choice), node_port))
    assert world.sync.usage()["lb_slots"].used == 2
    assert world.sync.usage()["lb_backends"].used == 2


def test_two_service_ports_with_the_same_endpoint_have_each_their_own_backend(world: World):
    other = frontend("10.96.0.2", backends(POD), service=named("other"))
    world.change(by_service(frontend(choice=backends(POD)), other))
    assert not backend_indices(world) & set(found(world, "10.96.0.2").backends)


@pytest.fixture
def waits(world: World, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When a grace period was waited for, after reading back."""
    times: list[float] = []
    monkeypatch.setattr(world.readers, "quiesce", lambda: times.append(world.now))
    world.sync = world.restarted()
    world.sync.load()
    times.clear()
    return times


def test_an_index_is_not_used_again_before_a_grace_period(world: World, waits: list[float]):
    world.sync.apply(by_service(frontend(choice=backends(POD))))
    world.sync.apply({WEB: ()})
    world.now = GRACE - 0.1
    world.sync.collect()
    assert (waits, world.sync.usage()["lb_backends"].used) == ([], 1)
    world.now = GRACE
    world.sync.collect()
    assert (waits, world.sync.usage()["lb_backends"].used) == ([GRACE], 0)
    world.sync.collect()
    assert waits == [GRACE]


def test_a_grace_period_that_has_passed_elsewhere_is_not_waited_for(
    world: World, waits: list[float]
):
    world.now = 5
    world.sync.apply(by_service(frontend(choice=backends(POD))))
    world.sync.apply({WEB: ()})
    world.now = 5 + GRACE
    world.sync.collect(quiesced=4.9)
    assert world.sync.usage()["lb_backends"].used == 1
    world.sync.collect(quiesced=5)
    assert world.sync.usage()["lb_backends"].used == 0
    assert waits == []


def test_a_grace_period_that_began_before_the_last_write_frees_nothing(world: World):
    def pass_time() -> None:
        world.now += GRACE

    world.change(by_service(frontend(choice=backends(POD))))
    used = world.sync.usage()
    world.watch.inspect = pass_time
    world.sync.apply({WEB: ()})
    world.sync.collect(quiesced=world.now - GRACE)
    assert world.sync.usage() == {**used, "lb_names": (0, used["lb_names"].size)}
    world.sync.forget(world.sync.idle())
    world.sync.collect(quiesced=world.now - GRACE)
    assert world.sync.usage()["lb_backends"].used == 0
    assert world.sync.usage()["lb_addrs"].used == 1


def test_an_index_that_is_used_again_has_a_new_serial_and_fresh_counters(world: World):
    counters = [world.maps["lb_count_back"], world.maps["lb_count_front"]]
    for pod in (POD, OTHER_POD):
        world.change(by_service(frontend(choice=backends(pod))))
        assert all(counter.lookup(bytes(4)) == bytes(2 * sizeof(LbCounts)) for counter in counters)
        for counter in counters:
            counter.update(bytes(4), b"\1" * 2 * sizeof(LbCounts), exist=Exist.YES)
        world.change({})
        world.now += 10
        world.sync.collect()
    world.change(by_service(frontend(choice=backends(POD))))
    (record,) = found(world).backends.values()
    assert backend_indices(world) == {0}
    assert record.serial == 3


def test_a_frontend_that_is_used_again_after_a_restart_has_fresh_counters(world: World):
    world.change(by_service(frontend()))
    world.change({})
    world.maps["lb_count_front"].update(bytes(4), b"\1" * 2 * sizeof(LbCounts))
    world.resync(by_service(frontend()))
    assert world.maps["lb_count_front"].lookup(bytes(4)) == bytes(2 * sizeof(LbCounts))


def test_a_service_id_is_not_given_to_another_service_even_after_a_restart(world: World):
    world.change(by_service(frontend(choice=backends(POD))))
    (first,) = found(world).backends.values()
    world.change({})
    world.resync(by_service(frontend(choice=backends(POD), service=named("other"))))
    (second,) = found(world).backends.values()
    assert first.service != second.service


@pytest.mark.parametrize("order", ["ab", "ba"])
def test_a_frontend_that_two_services_want_goes_to_the_first_by_name(world: World, order: str):
    world.sync.apply(by_service(*(frontend(service=named(name)) for name in order)))
    assert found(world).offer.service == ("default", "a", "")


def test_a_frontend_moves_even_if_its_old_service_is_not_named(world: World):
    node_port = frontend(key=NODE_PORT, type=FrontendType.NODE_PORT)
    world.change(by_service(frontend(choice=backends(POD)), node_port))
    world.sync.apply(by_service(frontend(choice=backends(POD), service=named("a"))))
    assert found(world).offer.service == ("default", "a", "")
    world.now += 10
    world.sync.collect()
    assert world.sync.usage()["lb_backends"].used == 1
    assert world.sync.usage()["lb_names"].used == 2


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("lb_frontends", 1),
        ("lb_current", 1),
        ("lb_descs", 2),
        ("lb_slots", 1),
        ("lb_backends", 1),
        ("lb_addrs", 1),
        ("lb_addr_flags", 1),
        ("lb_names", 1),
    ],
)
def test_a_full_map_refuses_one_service_and_no_other(name: str, size: int):
    world = World({name: size})
    world.change(by_service(frontend(choice=backends(POD))))
    large = frontend("10.96.0.2", backends(POD, OTHER_POD), service=named("large"))
    (error,) = world.sync.apply({**by_service(large), WEB: ()}).values()
    assert error.map_name == {"lb_current": "lb_frontends", "lb_addr_flags": "lb_addrs"}.get(
        name, name
    )
    assert error.errno == E2BIG
    assert look_up(world.maps, key("10.96.0.1")) is None
    assert look_up(world.maps, key("10.96.0.2")) is None
    assert address_flags(world.maps, large.key.address) is None


def test_a_service_that_is_refused_fits_once_room_was_collected():
    world = World({"lb_backends": 1})
    world.change(by_service(frontend(choice=backends(POD))))
    assert world.change(by_service(frontend(choice=backends(OTHER_POD)))) == {WEB}
    assert world.change({}) == set()
    world.now += 10
    world.sync.collect()
    assert world.change(by_service(frontend(choice=backends(OTHER_POD)))) == set()


def test_a_name_that_is_too_long_refuses_its_service(world: World):
    long = frontend("10.96.0.2", service=named("w" * 64))
    (error,) = world.sync.apply(by_service(frontend(), long)).values()
    assert error.errno == ENAMETOOLONG
    assert found(world).offer.service == ("default", "web", "")


def test_after_a_write_that_failed_the_next_call_reads_back_and_converges(world: World):
    world.change(by_service(frontend(choice=backends(POD))))
    world.watch.crash_at = len(world.watch.written) + 2
    world.watch.crash = MapError("lb_descs", "update", ENOMEM)
    desired = by_service(frontend(choice=backends(OTHER_POD)))
    with pytest.raises(MapError):
        world.sync.apply(desired)
    world.watch.crash_at = None
    world.change(desired)
    world.now += 10
    world.sync.collect()
    assert world.sync.usage()["lb_backends"].used == 1


def test_many_services_are_written_in_groups_and_read_back(world: World):
    world = World(dict.fromkeys(("lb_frontends", "lb_current", "lb_descs", "lb_names"), 700))
    many = by_service(
        *(
            frontend(
                key=FrontendKey(WILDCARD[Family.IPV6], port, Protocol.TCP),
                type=FrontendType.NODE_PORT,
                service=named(f"service-{port}"),
            )
            for port in range(1, 600)
        )
    )
    assert world.sync.resync(many) == {}
    before = len(world.watch.written)
    assert world.restarted().resync(many) == {}
    assert world.watch.written[before:] == []
    assert world.sync.usage()["lb_names"] == (599, 700)


def test_a_choice_without_backends_takes_no_slot(world: World):
    world.change(by_service(frontend(choice=Choice((), NOTHING.if_empty))))
    assert world.sync.usage()["lb_slots"].used == 0
    assert found(world).backends == {}


def test_backends_stand_in_the_order_of_their_indices(world: World):
    world.change(by_service(frontend(choice=backends(OTHER_POD))))
    world.change(by_service(frontend(choice=backends(OTHER_POD, POD))))
    assert list(found(world).backends) == [0, 1]
    assert [place(each)[0][-1] for each in found(world).backends.values()] == [2, 1]


def test_backends_of_empty_maps_begin_with_the_epoch():
    maps = memory_maps()
    sync = Sync(maps, quiesce=lambda: None, epoch=5 << 16)
    sync.apply(by_service(frontend(choice=backends(POD))))
    first = LbBackend.from_buffer_copy(maps["lb_backends"].lookup(bytes(4)) or b"")
    assert first.serial == (5 << 16) + 1


def test_what_did_not_fit_keeps_no_maps_open():
    """They are replaced by larger ones, and would stay in the kernel until Python collects them."""
    sync = Sync(memory_maps({"lb_addrs": 1}), quiesce=lambda: None)
    sync.apply(by_service(frontend()))
    state = weakref.ref(sync._state)
    gc.disable()
    try:
        refused = sync.apply(by_service(frontend("10.96.0.2")))
        del sync
        assert [error.errno for error in refused.values()] == [E2BIG]
        assert state() is None
    finally:
        gc.enable()
