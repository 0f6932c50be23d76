# SPDX-License-Identifier: Apache-2.0
"""lb_pods_here: local pods that other nodes may send to, including those not currently chosen."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from ebpflb.dataplane.layout.enums import BackendFlag
from ebpflb.dataplane.layout.records import pack_open, unpack_open
from ebpflb.dataplane.layout.structs import LbLatency, LbPodKey, u32
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import Protocol, format_address
from ebpflb.model.plan import Choice, Frontend, FrontendType
from ebpflb.model.service import ServicePortName
from ebpflb.words.scheduler import Scheduler
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import NOTHING, backends, by_service, frontend, key, named
from tests.unit.dataplane.programs import backend, key_bytes, look_up, pods_here
from tests.unit.dataplane.watching import CrashError
from tests.unit.dataplane.world import World

USABLE, SERVING = BackendFlag.LB_BACKEND_USABLE, BackendFlag.LB_BACKEND_SERVING
LOCAL, TERMINATING = BackendFlag.LB_BACKEND_LOCAL, BackendFlag.LB_BACKEND_TERMINATING
FIRST, SECOND, THIRD, FOURTH = (f"10.1.0.{number}" for number in range(1, 5))
UDP = ServicePortName("default", "web", "", Protocol.UDP)


def here(*addresses: str, terminating: bool = False) -> Choice:
    return backends(*addresses, local=True, terminating=terminating)


def web(choice: Choice = NOTHING, *pods: str, **fields: Any) -> Frontend:
    """A NodePort with DSR; `pods`: of this node."""
    fields = {"key": key("0.0.0.0", 30080), "type": FrontendType.NODE_PORT, **fields}
    return frontend(choice=choice, dsr=True, here=here(*pods).backends, **fields)


def dns(choice: Choice, *pods: str, serving: Choice = NOTHING) -> Frontend:
    place = key("0.0.0.0", 30053, Protocol.UDP)
    return web(choice, *pods, key=place, service=UDP, serving=serving.backends)


@pytest.fixture
def world() -> World:
    return World()


def change(world: World, *frontends: Frontend) -> None:
    """Give the sync this as all there is."""
    world.watch.inspect = lambda: None
    world.sync.resync(by_service(*frontends))


def pods(world: World) -> dict[str, int]:
    """The index of each."""
    return {
        format_address(place[0]): index  # type: ignore[arg-type]
        for (_, place), index in pods_here(world.maps).items()
    }


def flags(world: World, index: int) -> int:
    return int(backend(world.maps, index).flags)


def used(world: World) -> int:
    world.now += 10
    world.sync.collect()
    return world.sync.usage()["lb_backends"].used


def test_a_pod_has_the_index_by_which_ranges_name_it(world: World):
    change(world, web(here(FIRST), FIRST))
    found = look_up(world.maps, key("0.0.0.0", 30080))
    assert found
    assert set(pods(world).values()) == set(found.backends)
    assert flags(world, pods(world)[FIRST]) == USABLE | LOCAL


def test_a_pod_that_no_range_names_is_there_without_being_usable(world: World):
    change(world, web(backends(SECOND), FIRST))
    assert pods(world).keys() == {FIRST}
    assert flags(world, pods(world)[FIRST]) == LOCAL
    assert used(world) == 2
    change(world, web(here(FIRST), FIRST))
    assert flags(world, pods(world)[FIRST]) == USABLE | LOCAL
    assert used(world) == 1


def test_a_pod_keeps_its_index_when_ranges_no_longer_name_it(world: World):
    change(world, web(here(FIRST), FIRST))
    before = pods(world)
    gone = replace(web(backends(SECOND)), here=here(FIRST, terminating=True).backends)
    change(world, gone)
    assert pods(world) == before
    assert flags(world, before[FIRST]) == LOCAL | TERMINATING


def test_a_pod_that_is_gone_is_not_there(world: World):
    change(world, web(backends(SECOND), FIRST))
    change(world, web(backends(SECOND)))
    assert pods(world) == {}
    assert used(world) == 1


@pytest.mark.parametrize("end", ["service", "dsr", "withdrawn"])
def test_pods_go_with_what_makes_others_send_to_them(world: World, end: str):
    with_dsr = web(here(FIRST), FIRST, SECOND)
    change(world, with_dsr)
    plain = replace(with_dsr, dsr=False, here=())
    left = {"service": (), "dsr": (plain,), "withdrawn": (replace(plain, withdrawn=True),)}
    change(world, *left[end])
    assert pods(world) == {}
    assert used(world) == (1 if end == "dsr" else 0)


def test_pods_go_when_the_frontend_becomes_another_services(world: World):
    change(world, web(backends(SECOND), FIRST), frontend("10.96.0.1"))
    world.sync.apply(by_service(replace(web(backends(SECOND)), service=named("other"))))
    assert pods(world) == {}
    assert used(world) == 1


def test_both_families_of_a_port_have_their_pods(world: World):
    other = web(backends("fd00:1::2"), "fd00:1::1", key=key("::", 30080))
    change(world, web(here(FIRST), FIRST), other)
    assert pods(world).keys() == {FIRST, "fd00:1::1"}


def test_the_key_is_that_of_c(world: World):
    change(world, web(here(FIRST), FIRST))
    ((raw, index),) = world.maps["lb_pods_here"].items()
    record = backend(world.maps, u32.from_buffer_copy(index).value)
    wanted = LbPodKey(addr=record.addr, port=8080, proto=int(Protocol.TCP), service=record.service)
    assert raw == bytes(wanted)


def test_udp_flows_stay_with_a_pod_that_serves_without_being_chosen(world: World):
    change(world, dns(backends(SECOND), FIRST, serving=here(FIRST)))
    index = pods(world)[FIRST]
    assert flags(world, index) == SERVING | LOCAL
    assert not restarted(world, dns(backends(SECOND), FIRST, serving=here(FIRST)))
    world.sync.take_ended_udp()
    change(world, dns(backends(SECOND), FIRST))
    assert (pods(world)[FIRST], flags(world, index)) == (index, LOCAL)
    assert world.sync.take_ended_udp()
    change(world, dns(backends(SECOND)))
    assert not world.sync.take_ended_udp()


def test_a_pod_is_where_connections_are_counted_like_a_new_backend(world: World):
    change(world, web(here(FIRST), FIRST, scheduler=Scheduler.LEAST_CONNECTIONS))
    table = world.maps["lb_open"]
    table.update(bytes(u32(pods(world)[FIRST])), pack_open(8))
    change(world, web(here(FIRST), FIRST, SECOND, scheduler=Scheduler.LEAST_CONNECTIONS))
    value = table.lookup(bytes(u32(pods(world)[SECOND])))
    assert unpack_open(value or b"") == 8


def test_a_new_backend_has_the_mean_latency_of_those_that_are_known(world: World):
    fields = {"scheduler": Scheduler.LOWEST_LATENCY}
    change(world, web(backends(FIRST, SECOND, THIRD), **fields))
    latencies = world.maps["lb_latencies"]
    for index, value in enumerate((LbLatency(100, 7), LbLatency(0, 9), LbLatency(300, 8))):
        latencies.update(bytes(u32(index)), bytes(value))
    change(world, web(backends(FIRST, SECOND, THIRD, FOURTH), **fields))
    assert latencies.lookup(bytes(u32(3))) == bytes(LbLatency(200, 8))


def restarted(world: World, *frontends: Frontend) -> list[str]:
    """The maps that a new agent writes."""
    world.sync = world.restarted()
    world.sync.load()
    before = len(world.watch.written)
    change(world, *frontends)
    return world.watch.written[before:]


def test_a_restart_keeps_them_and_writes_nothing(world: World):
    desired = web(backends(SECOND), FIRST)
    change(world, desired)
    before = pods(world)
    assert restarted(world, desired) == []
    assert pods(world) == before
    assert used(world) == 2


STRANGE: dict[str, Callable[[LbPodKey], tuple[LbPodKey, int]]] = {
    "another pod": lambda key: (LbPodKey(port=1, service=key.service), 0),
    "another Service": lambda key: (LbPodKey(key.addr, key.port, key.proto, 0, 77), 0),
    "an index out of range": lambda key: (key, 1 << 20),
    "the index of another pod": lambda key: (key, 1),
}


@pytest.mark.parametrize("damage", STRANGE.values(), ids=STRANGE)
def test_what_does_not_belong_together_is_deleted(
    world: World, damage: Callable[[LbPodKey], tuple[LbPodKey, int]]
):
    desired = web(here(FIRST, SECOND), FIRST, SECOND)
    change(world, desired)
    before = pods(world)
    table = world.maps["lb_pods_here"]
    first = next(raw for raw, value in table.items() if value == bytes(u32(0)))
    broken, index = damage(LbPodKey.from_buffer_copy(first))
    table.delete(first)
    table.update(bytes(broken), bytes(u32(index)))
    restarted(world, desired)
    assert pods(world) == before
    assert len(list(table.items())) == 2


def test_pods_of_what_lost_its_frontends_are_deleted(world: World):
    change(world, web(backends(SECOND), FIRST), frontend("10.96.0.1"))
    world.maps["lb_frontends"].delete(key_bytes(key("0.0.0.0", 30080)))
    world.sync = world.restarted()
    world.sync.load()
    assert pods(world) == {}


@pytest.mark.parametrize("forth", [True, False])
def test_a_crash_at_any_write_leaves_no_wrong_pod(forth: bool):
    out, back = web(backends(SECOND), FIRST), web(here(FIRST), FIRST, SECOND)
    old, new = (back, out) if forth else (out, back)
    for moment in count():
        world = World()
        change(world, old)
        world.watch.crash_at = len(world.watch.written) + moment
        with suppress(CrashError):
            world.restarted().resync(by_service(new))
        crashed = len(world.watch.written) >= world.watch.crash_at
        world.watch.crash_at = None
        world.sync = world.restarted()
        change(world, new)
        assert pods(world).keys() == ({FIRST} if forth else {FIRST, SECOND})
        assert flags(world, pods(world)[FIRST]) == (LOCAL if forth else LOCAL | USABLE)
        assert used(world) == 2
        if not crashed:
            break


def test_where_they_do_not_fit_nothing_is_taken():
    maps = memory_maps({"lb_backends": 2, "lb_pods_here": 2, "lb_count_back": 2})
    sync = Sync(maps, quiesce=lambda: None)
    sync.load()
    (service,) = desired = by_service(web(here(FIRST), FIRST, SECOND, "10.1.0.3"))
    assert sync.apply(desired).keys() == {service}
    assert list(maps["lb_pods_here"].items()) == []
    assert sync.usage()["lb_backends"].used == 0
    assert not sync.apply(by_service(web(here(FIRST), FIRST, SECOND)))
    assert len(list(maps["lb_pods_here"].items())) == 2
