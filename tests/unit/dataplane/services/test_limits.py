# SPDX-License-Identifier: Apache-2.0
"""Limits are there before a descriptor says so, and until none does."""

from errno import E2BIG

import pytest

from ebpflb.dataplane.layout.capacity import Sizes, sizes_for
from ebpflb.dataplane.layout.records import pack_index, pack_open, unpack_limits, unpack_open
from ebpflb.dataplane.layout.structs import LbAddr, LbClientKey, LbClientUse
from ebpflb.dataplane.services.limits import LimitRecords
from ebpflb.model.address import parse_address
from ebpflb.model.extensions.limits import NO_LIMITS, Limits, OpenLimit, rate_limit
from ebpflb.model.plan import Frontend
from ebpflb.model.service import ServiceName
from ebpflb.words.scheduler import Scheduler
from tests.unit.dataplane.desired import backends, by_service, frontend, named
from tests.unit.dataplane.programs import limit_of
from tests.unit.dataplane.world import World
from tests.unit.dataplane.written import assert_tidy, written_by_restart

WEB = ServiceName("default", "web")
PODS = backends("10.1.0.1", "10.1.0.2")
SOME = Limits(OpenLimit(100), OpenLimit(20, drops=True))
OTHER = Limits(new_per_client=rate_limit(30, per_minute=True, burst=5, drops=True))


@pytest.fixture
def world() -> World:
    return World()


def limited(limits: Limits, text: str = "10.96.0.1", **fields: object) -> Frontend:
    return frontend(text, PODS, limits=limits, **{"counts_open": limits.counts_open, **fields})


def written(world: World, *frontends: Frontend) -> list[str]:
    before = len(world.watch.written)
    world.change(by_service(*frontends))
    return world.watch.written[before:]


def kept(world: World) -> list[Limits]:
    return [unpack_limits(value) for _, value in world.maps["lb_limits"].items()]


def test_they_are_written_as_programs_read_them(world: World):
    world.change(by_service(limited(SOME), limited(OTHER, "10.96.0.2", service=named("x"))))
    both = filter(None, (limit_of(world.maps, each) for each in (1, 2)))
    some, other = sorted(both, key=lambda each: int(each.interval))
    assert (some.interval, some.burst, some.open, some.client_open, some.flags) == (
        0,
        0,
        100,
        20,
        2,
    )
    assert (other.interval, other.burst) == (2_000_000_000, 8_000_000_000)
    assert (other.open, other.client_open, other.flags) == (0, 0, 4)


@pytest.mark.parametrize("limits", [NO_LIMITS, SOME, OTHER])
def test_they_are_read_back(world: World, limits: Limits):
    world.change(by_service(limited(limits)))
    assert kept(world) == [limits] * (limits != NO_LIMITS)
    assert written_by_restart(world) == []


def test_they_are_written_before_the_descriptor_and_deleted_after_it(world: World):
    assert written(world, limited(NO_LIMITS)).count("lb_limits") == 0
    assert written(world, limited(SOME)) == [
        *("lb_open", "lb_open"),
        *("lb_limits", "lb_descs", "lb_current"),
    ]
    assert written(world, limited(NO_LIMITS)) == ["lb_descs", "lb_current", "lb_limits"]
    assert_tidy(world)


def test_another_limit_replaces_the_element_alone(world: World):
    world.change(by_service(limited(SOME), limited(SOME, "fd00::1")))
    more = SOME._replace(per_endpoint=OpenLimit(200))
    assert written(world, limited(more), limited(more, "fd00::1")) == ["lb_limits"]
    assert kept(world) == [more]
    assert written(world, limited(more), limited(more, "fd00::1")) == []


def used(world: World, service: int) -> bytes:
    """What one of its clients has opened, and by how much it is ahead; returns the key."""
    key = bytes(LbClientKey(service=service, client=LbAddr.of(parse_address("192.0.2.1"))))
    world.maps["lb_client_uses"].update(key, bytes(LbClientUse(open=3, due=77)))
    return key


def left(world: World, key: bytes) -> tuple[int, int]:
    use = LbClientUse.from_buffer_copy(world.maps["lb_client_uses"].lookup(key) or b"")
    return use.open, use.due


def test_with_another_rate_clients_begin_anew(world: World):
    world.change(by_service(limited(OTHER)))
    own, another = used(world, 1), used(world, 2)
    world.change(by_service(limited(OTHER._replace(per_endpoint=OpenLimit(5)))))
    assert [left(world, own), left(world, another)] == [(3, 77), (3, 77)]
    faster = rate_limit(31, per_minute=True, burst=5)
    world.change(by_service(limited(Limits(new_per_client=faster))))
    assert [left(world, own), left(world, another)] == [(3, 0), (3, 77)]


@pytest.mark.parametrize("before", [OTHER, Limits(OpenLimit(9)), NO_LIMITS])
def test_connections_that_nothing_corrected_do_not_fill_a_limit_that_comes(
    world: World, before: Limits
):
    world.change(by_service(limited(before)))
    own, another = used(world, 1), used(world, 2)
    world.change(by_service(limited(before._replace(per_client=OpenLimit(5)))))
    assert [left(world, own), left(world, another)] == [(0, 77), (3, 77)]
    own = used(world, 1)
    world.change(by_service(limited(before._replace(per_client=OpenLimit(4)))))
    assert left(world, own) == (3, 77)


def test_clients_are_looked_through_once_for_all_services_that_change(world: World, monkeypatch):
    passes = []
    monkeypatch.setattr(LimitRecords, "_begin_anew", lambda _, services: passes.append(services))
    some = (limited(SOME, f"10.96.0.{n}", service=named(f"web-{n}")) for n in range(1, 6))
    world.change(by_service(*some))
    assert [len(each) for each in passes] == [5]


def test_they_go_with_the_service(world: World):
    world.change(by_service(limited(SOME)))
    world.change({WEB: ()})
    assert kept(world) == []
    assert_tidy(world)


def test_an_element_without_a_service_is_deleted_at_a_restart(world: World):
    world.change(by_service(limited(NO_LIMITS)))
    world.maps["lb_limits"].update(pack_index(1), bytes(31) + b"\1")
    world.maps["lb_limits"].update(pack_index(9), bytes(31) + b"\1")
    assert written_by_restart(world) == ["lb_limits", "lb_limits"]
    assert_tidy(world)


def test_an_element_that_is_gone_is_written_again_at_a_restart(world: World):
    world.change(by_service(limited(SOME)))
    world.maps["lb_limits"].delete(pack_index(1))
    assert written_by_restart(world) == ["lb_limits"]
    assert kept(world) == [SOME]


def test_limits_that_do_not_fit_leave_the_service_as_it_was():
    world = World({"lb_limits": 1})
    api = limited(NO_LIMITS, "10.96.0.2", service=named("api"))
    world.change(by_service(limited(SOME), api))
    wish = by_service(limited(SOME, "10.96.0.2", service=named("api")))
    error = world.sync.apply(wish)[ServiceName("default", "api")]
    assert (error.map_name, error.errno) == ("lb_limits", E2BIG)
    assert world.sync.usage()["lb_limits"] == (1, 1)
    assert not world.sync.apply({WEB: ()})
    assert not world.sync.apply(wish)
    assert world.sync.usage()["lb_limits"] == (1, 1)


def test_what_does_not_fit_elsewhere_takes_no_room():
    world = World({"lb_descs": 2})
    assert world.sync.apply(by_service(limited(SOME), limited(SOME, "10.96.0.2")))
    assert world.sync.usage()["lb_limits"] == (0, 16)
    assert_tidy(world)


def test_larger_maps_have_room_for_twice_the_limits():
    frontends = [limited(SOME, service=named(f"web-{number}")) for number in range(700)]
    assert sizes_for(frontends).limits == 2048
    assert sizes_for([limited(NO_LIMITS)] * 700).limits == Sizes().limits


def open_counts(world: World) -> list[int]:
    return [unpack_open(value) for _, value in world.maps["lb_open"].items()][:3]


@pytest.mark.parametrize(
    ("scheduler", "limits", "third"),
    [
        (Scheduler.RANDOM, Limits(OpenLimit(80)), 0),
        (Scheduler.LEAST_CONNECTIONS, NO_LIMITS, 70),
        (Scheduler.LEAST_CONNECTIONS, Limits(OpenLimit(80)), 40),
        (Scheduler.LEAST_CONNECTIONS, Limits(OpenLimit(200)), 70),
        (Scheduler.LEAST_CONNECTIONS, Limits(None, OpenLimit(80)), 70),
    ],
)
def test_a_new_endpoint_is_not_full_from_the_start(
    world: World, scheduler: Scheduler, limits: Limits, third: int
):
    world.change(by_service(limited(limits, scheduler=scheduler)))
    for index, count in enumerate((60, 80, 99)):
        # The last one is what an earlier endpoint has left there.
        world.maps["lb_open"].update(pack_index(index), pack_open(count))
    more = backends("10.1.0.1", "10.1.0.2", "10.1.0.3")
    world.change(by_service(limited(limits, scheduler=scheduler, local=more, others=more)))
    assert open_counts(world) == [60, 80, third]


@pytest.mark.parametrize(
    ("scheduler", "limits"),
    [
        (Scheduler.RANDOM, SOME),
        (Scheduler.LEAST_CONNECTIONS, NO_LIMITS),
        (Scheduler.LEAST_CONNECTIONS, SOME),
    ],
)
def test_what_others_have_left_fills_no_endpoint_when_a_limit_comes(
    world: World, scheduler: Scheduler, limits: Limits
):
    for index in range(3):
        world.maps["lb_open"].update(pack_index(index), pack_open(500))
    world.change(by_service(limited(NO_LIMITS)))
    assert open_counts(world) == [500] * 3
    world.change(by_service(limited(limits, scheduler=scheduler)))
    assert open_counts(world) == [0, 0, 500]
    world.maps["lb_open"].update(pack_index(0), pack_open(7))
    more = limits._replace(per_endpoint=OpenLimit(9))
    world.change(by_service(limited(more, scheduler=scheduler, affinity_timeout=9)))
    assert open_counts(world) == [7, 0, 500]
