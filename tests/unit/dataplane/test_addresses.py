# SPDX-License-Identifier: Apache-2.0
from contextlib import suppress
from errno import E2BIG

import pytest

from ebpflb.dataplane.enums import AddrFlag
from ebpflb.errors import MapError
from ebpflb.model.address import parse_address
from ebpflb.model.plan import FrontendType
from tests.unit.dataplane.desired import by_service, frontend, key, named
from tests.unit.dataplane.programs import address_flags
from tests.unit.dataplane.test_sync import NODE_PORT
from tests.unit.dataplane.watching import CrashError
from tests.unit.dataplane.world import World

CLUSTER_IP, EXTERNAL = AddrFlag.LB_ADDR_CLUSTER_IP, AddrFlag.LB_ADDR_EXTERNAL
NODE = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
VIP = parse_address("10.96.0.1")
HOST = parse_address("192.0.2.7")


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(
    ("kind", "flags"),
    [
        (FrontendType.CLUSTER_IP, CLUSTER_IP),
        (FrontendType.EXTERNAL_IP, EXTERNAL),
        (FrontendType.LOAD_BALANCER, EXTERNAL),
    ],
)
def test_the_type_of_a_frontend_decides_what_its_address_is(
    world: World, kind: FrontendType, flags: AddrFlag
):
    world.change(by_service(frontend(type=kind)))
    assert address_flags(world.maps, VIP) == flags


def test_a_node_port_brings_no_address(world: World):
    world.change(by_service(frontend(key=NODE_PORT, type=FrontendType.NODE_PORT)))
    assert list(world.maps["lb_addrs"].items()) == []


def test_an_address_has_the_flags_of_all_that_use_it(world: World):
    cluster_ip = frontend()
    external = frontend(
        key=key("10.96.0.1", 443), type=FrontendType.EXTERNAL_IP, service=named("other")
    )
    world.sync.set_node_addresses({VIP: NODE})
    world.sync.apply(by_service(cluster_ip, external))
    assert address_flags(world.maps, VIP) == NODE | CLUSTER_IP | EXTERNAL
    world.sync.resync(by_service(external))
    assert address_flags(world.maps, VIP) == NODE | EXTERNAL
    world.sync.set_node_addresses({})
    assert address_flags(world.maps, VIP) == EXTERNAL


def test_the_addresses_of_the_node_are_replaced_and_survive_a_restart(world: World):
    world.sync.set_node_addresses({HOST: AddrFlag.LB_ADDR_NODE, VIP: NODE})
    sync = world.restarted()
    before = len(world.watch.written)
    sync.set_node_addresses({HOST: AddrFlag.LB_ADDR_NODE, VIP: NODE})
    assert world.watch.written[before:] == []
    sync.set_node_addresses({HOST: NODE})
    assert address_flags(world.maps, HOST) == NODE
    assert address_flags(world.maps, VIP) == 0


def test_an_address_that_is_gone_is_known_until_it_is_forgotten(world: World):
    world.change(by_service(frontend()))
    assert world.sync.idle_addresses() == set()
    world.sync.forget_addresses({VIP})
    assert address_flags(world.maps, VIP) == CLUSTER_IP
    world.change({})
    assert address_flags(world.maps, VIP) == 0
    assert world.sync.idle_addresses() == {VIP}
    world.sync.forget_addresses({HOST})
    assert address_flags(world.maps, VIP) == 0
    world.sync.forget_addresses({VIP, HOST})
    assert address_flags(world.maps, VIP) is None


@pytest.mark.parametrize("moment", range(16))
def test_an_address_is_a_cluster_ip_throughout_a_crash(world: World, moment: int):
    other = key("10.96.0.1", 443)
    world.change(by_service(frontend(key=other)))
    world.watch.crash_at = len(world.watch.written) + moment
    desired = by_service(frontend(), frontend(key=other, type=FrontendType.EXTERNAL_IP))
    with suppress(CrashError):
        world.sync.apply(desired)
    world.watch.crash_at = None
    world.resync(desired)
    assert address_flags(world.maps, VIP) == CLUSTER_IP | EXTERNAL


def test_flags_without_an_address_are_not_inherited_by_the_next_one(world: World):
    world.maps["lb_addr_flags"].update(bytes(4), bytes([CLUSTER_IP, *bytes(7)]))
    world.resync(by_service(frontend("192.0.2.1", type=FrontendType.EXTERNAL_IP)))
    assert address_flags(world.maps, parse_address("192.0.2.1")) == EXTERNAL


def test_an_address_without_flags_is_still_idle_after_a_restart(world: World):
    world.change(by_service(frontend()))
    world.change({})
    sync = world.restarted()
    assert sync.idle_addresses() == {VIP}
    sync.apply(by_service(frontend()))
    assert address_flags(world.maps, VIP) == CLUSTER_IP


def test_the_index_of_a_forgotten_address_is_not_used_again_before_a_grace_period():
    world = World({"lb_addrs": 1})
    world.change(by_service(frontend()))
    world.change({})
    world.sync.forget_addresses({VIP})
    other = by_service(frontend("10.96.0.2"))
    assert set(world.sync.apply(other)) == set(other)
    world.now += 10
    world.sync.collect()
    assert world.sync.apply(other) == {}


def test_node_addresses_that_do_not_fit_are_reported_and_the_others_written():
    world = World({"lb_addrs": 1})
    with pytest.raises(MapError) as error:
        world.sync.set_node_addresses({HOST: NODE, VIP: NODE})
    assert error.value.errno == E2BIG
    assert address_flags(world.maps, HOST) == NODE
    world.sync.set_node_addresses({HOST: AddrFlag.LB_ADDR_NODE})
    assert address_flags(world.maps, HOST) == AddrFlag.LB_ADDR_NODE
