# SPDX-License-Identifier: Apache-2.0
from contextlib import suppress
from errno import E2BIG

import pytest

from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.dataplane.layout.structs import LbDest, u32
from ebpflb.errors import MapError
from ebpflb.model.address import Protocol, parse_address
from ebpflb.model.extensions.vips import Unserved
from ebpflb.model.plan import FrontendKey, FrontendType
from tests.unit.dataplane.desired import (
    NODE_PORT,
    Desired,
    backends,
    by_service,
    frontend,
    key,
    named,
)
from tests.unit.dataplane.programs import address_flags, address_in_place, filter_flags
from tests.unit.dataplane.watching import CrashError
from tests.unit.dataplane.world import World

CLUSTER_IP, EXTERNAL = AddrFlag.LB_ADDR_CLUSTER_IP, AddrFlag.LB_ADDR_EXTERNAL
NODE = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
VIP = parse_address("10.96.0.1")
HOST = parse_address("192.0.2.7")
# With the same place as HOST: two words of 16 bits are exchanged.
BESIDE = parse_address("2.7.192.0")
ALSO_BESIDE = parse_address("2.6.192.1")


@pytest.fixture
def world() -> World:
    return World()


def passing(world: World) -> dict[int, int]:
    """What the filter lets pass: the flags of its elements that have any."""
    return filter_flags(world.maps)


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


@pytest.mark.parametrize(
    ("kind", "proto", "flags"),
    [
        (FrontendType.EXTERNAL_IP, Protocol.UDP, AddrFlag.LB_ADDR_EXTERNAL_PORT),
        (FrontendType.LOAD_BALANCER, Protocol.UDP, AddrFlag.LB_ADDR_EXTERNAL_PORT),
        (FrontendType.EXTERNAL_IP, Protocol.TCP, 0),
        (FrontendType.CLUSTER_IP, Protocol.UDP, 0),
    ],
)
def test_udp_that_the_node_sends_from_the_port_of_an_external_ip_is_looked_at(
    world: World, kind: FrontendType, proto: Protocol, flags: AddrFlag
):
    wanted = FrontendKey(VIP, 5060, proto)
    world.sync.apply(by_service(frontend(key=wanted, type=kind)))
    found = world.maps["lb_dest_filter"].lookup(bytes(u32(5060)))
    assert found
    assert LbDest.from_buffer_copy(found).flags == flags


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


def test_an_address_has_the_wishes_of_all_its_services(world: World):
    """Also after a restart, and until the last Service that asks is gone."""
    vips = [
        frontend(key=key("10.96.0.1", port), type=FrontendType.LOAD_BALANCER, unserved=wish)
        for port, wish in enumerate((Unserved.DROP, Unserved.REJECT, Unserved.PASS, None), 1)
    ]
    wishes = (
        AddrFlag.LB_ADDR_UNSERVED_DROP,
        AddrFlag.LB_ADDR_UNSERVED_REJECT,
        AddrFlag.LB_ADDR_UNSERVED_PASS,
        AddrFlag(0),
    )
    world.change(by_service(*vips))
    assert address_flags(world.maps, VIP) == EXTERNAL | wishes[0] | wishes[1] | wishes[2]
    world.resync(by_service(*vips[1:]))
    assert address_flags(world.maps, VIP) == EXTERNAL | wishes[1] | wishes[2]
    world.change(by_service(*vips[2:]))
    assert address_flags(world.maps, VIP) == EXTERNAL | wishes[2]
    world.change(by_service(*vips[3:]))
    assert address_flags(world.maps, VIP) == EXTERNAL
    assert passing(world) == {1: EXTERNAL}


def test_an_address_answers_pings_while_a_service_has_an_endpoint(world: World):
    pods = backends("10.1.0.1")
    world.change(by_service(frontend(choice=pods), frontend(key=key("10.96.0.1", 443))))
    assert address_flags(world.maps, VIP) == CLUSTER_IP | AddrFlag.LB_ADDR_ECHO
    world.change(by_service(frontend(), frontend(key=key("10.96.0.1", 443))))
    assert address_flags(world.maps, VIP) == CLUSTER_IP


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
    assert world.sync.idle() == set()
    world.sync.forget({VIP})
    assert address_flags(world.maps, VIP) == CLUSTER_IP
    world.change({})
    assert address_flags(world.maps, VIP) == 0
    assert world.sync.idle() == {VIP}
    world.sync.forget({HOST})
    assert address_flags(world.maps, VIP) == 0
    assert passing(world) == {0x0001: CLUSTER_IP}
    world.sync.forget({VIP, HOST})
    assert address_flags(world.maps, VIP) is None
    assert passing(world) == {}


def test_a_port_that_is_gone_passes_until_it_is_forgotten(world: World):
    node_port = frontend(key=NODE_PORT, type=FrontendType.NODE_PORT)
    place = FrontendKey(VIP, NODE_PORT.port, Protocol.UDP)
    both = by_service(node_port, frontend(key=place, type=FrontendType.EXTERNAL_IP))
    flags = AddrFlag.LB_ADDR_NODE_PORT, AddrFlag.LB_ADDR_EXTERNAL_PORT
    world.change(both)
    assert world.sync.idle() == set()
    world.change(by_service(node_port))
    assert passing(world)[NODE_PORT.port] == flags[0] | flags[1]
    assert world.sync.idle() == {VIP, NODE_PORT.port}
    world.sync.forget({NODE_PORT.port})
    assert passing(world)[NODE_PORT.port] == flags[0]
    world.change({})
    world.sync.forget(world.sync.idle())
    assert passing(world) == {}


def test_what_has_come_back_for_a_while_is_not_forgotten(world: World):
    """Flows may have begun, though all flows that were looked at before are others."""
    desired = by_service(
        frontend(),
        frontend(key=NODE_PORT, type=FrontendType.NODE_PORT, service=named("other")),
    )
    for _ in range(2):
        world.change(desired)
        world.sync.set_node_addresses({HOST: NODE})
        world.change({})
        world.sync.set_node_addresses({})
        found = passing(world)
        unused = world.sync.idle()
        world.change(desired)
        world.sync.set_node_addresses({HOST: NODE})
        world.change({})
        world.sync.set_node_addresses({})
        world.sync.forget(unused)
        assert passing(world) == found


def test_an_end_passes_as_long_as_any_address_has_it(world: World):
    same_end = parse_address("198.51.2.7")
    world.sync.set_node_addresses({HOST: NODE, same_end: AddrFlag.LB_ADDR_NODE})
    world.sync.set_node_addresses({same_end: AddrFlag.LB_ADDR_NODE})
    world.sync.forget(world.sync.idle())
    assert passing(world) == {0x0207: AddrFlag.LB_ADDR_NODE}
    world.sync.set_node_addresses({})
    world.sync.forget(world.sync.idle())
    assert passing(world) == {}


def test_what_an_earlier_run_has_left_in_the_filter_goes(world: World):
    for index, flags in ((7, NODE | CLUSTER_IP), (8, AddrFlag.LB_ADDR_EXTERNAL_PORT)):
        world.maps["lb_dest_filter"].update(bytes(u32(index)), bytes(LbDest(flags=flags)))
    world.resync(by_service(frontend()))
    ports = {7: AddrFlag.LB_ADDR_NODE_PORT, 8: AddrFlag.LB_ADDR_EXTERNAL_PORT}
    assert passing(world) == {1: CLUSTER_IP} | ports
    assert world.sync.idle() == ports.keys()
    world.sync.forget(world.sync.idle())
    assert passing(world) == {1: CLUSTER_IP}


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
    world.maps["lb_addr_flags"].update(bytes(4), AddrRecord(CLUSTER_IP, VIP).pack())
    world.resync(by_service(frontend("192.0.2.1", type=FrontendType.EXTERNAL_IP)))
    assert address_flags(world.maps, parse_address("192.0.2.1")) == EXTERNAL


def test_an_address_without_flags_is_still_idle_after_a_restart(world: World):
    world.change(by_service(frontend()))
    world.change({})
    sync = world.restarted()
    assert sync.idle() == {VIP}
    sync.apply(by_service(frontend()))
    assert address_flags(world.maps, VIP) == CLUSTER_IP


def test_the_index_of_a_forgotten_address_is_not_used_again_before_a_grace_period():
    world = World({"lb_addrs": 1})
    world.change(by_service(frontend()))
    world.change({})
    world.sync.forget(world.sync.idle())
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


def vip(text: str) -> Desired:
    return by_service(frontend(text))


def test_an_address_is_found_in_its_place(world: World):
    world.change(vip("10.96.0.1"))
    world.sync.set_node_addresses({HOST: NODE})
    assert address_in_place(world.maps, VIP) == (VIP, CLUSTER_IP)
    assert address_in_place(world.maps, HOST) == (HOST, NODE)


def test_addresses_with_the_same_end_have_places_of_their_own(world: World):
    same_end = parse_address("198.51.2.7")
    world.sync.set_node_addresses({HOST: NODE, same_end: NODE})
    for address in (HOST, same_end):
        assert address_in_place(world.maps, address) == (address, NODE)


@pytest.mark.parametrize("vip_first", [False, True])
def test_of_those_with_one_place_a_nodes_address_has_it(world: World, vip_first: bool):
    if vip_first:
        world.change(vip("2.7.192.0"))
        assert address_in_place(world.maps, HOST) == (BESIDE, CLUSTER_IP)
    world.sync.set_node_addresses({HOST: NODE})
    world.change(vip("2.7.192.0"))
    assert address_in_place(world.maps, BESIDE) == (HOST, NODE)
    assert address_flags(world.maps, BESIDE) == CLUSTER_IP


def test_of_two_node_addresses_with_one_place_the_first_stays(world: World):
    world.sync.set_node_addresses({HOST: NODE})
    for wanted in ({HOST: NODE, BESIDE: NODE}, {BESIDE: NODE, HOST: NODE}):
        before = len(world.watch.written)
        world.sync.set_node_addresses(wanted)
        assert address_in_place(world.maps, BESIDE) == (HOST, NODE)
    assert world.watch.written[before:] == []


def test_one_that_has_no_flags_any_more_leaves_its_place(world: World):
    world.sync.set_node_addresses({HOST: NODE})
    world.sync.set_node_addresses({BESIDE: NODE})
    assert address_in_place(world.maps, HOST) == (BESIDE, NODE)
    world.sync.forget(world.sync.idle())
    assert address_in_place(world.maps, HOST) == (BESIDE, NODE)


def test_a_forgotten_address_is_named_no_more_before_its_index_is_free(world: World):
    world.sync.set_node_addresses({HOST: NODE})
    world.sync.set_node_addresses({})
    assert address_in_place(world.maps, HOST) == (HOST, 0)
    before = len(world.watch.written)
    world.sync.forget(world.sync.idle())
    assert address_in_place(world.maps, HOST) is None
    written = world.watch.written[before:]
    assert written == ["lb_dest_filter", "lb_dest_filter", "lb_addrs"]


def test_the_index_of_a_forgotten_address_is_another_ones():
    world = World({"lb_addrs": 1})
    for address, flags in ((HOST, NODE), (BESIDE, CLUSTER_IP), (ALSO_BESIDE, EXTERNAL)):
        world.sync.set_node_addresses({address: flags})
        assert address_in_place(world.maps, HOST) == (address, flags)
        world.sync.set_node_addresses({})
        world.sync.forget(world.sync.idle())
        world.now += 10
        world.sync.collect()


def test_what_a_version_without_places_has_left_gets_one(world: World):
    """Its flags were copied, which is all that there was in an element."""
    world.sync.set_node_addresses({HOST: NODE})
    world.change(vip("10.96.0.1"))
    for name, kept in (("lb_addr_flags", 8), ("lb_dest_filter", 1)):
        for each, value in list(world.maps[name].items()):
            world.maps[name].update(each, value[:kept].ljust(len(value), b"\0"))
    world.resync(vip("10.96.0.1"))
    assert address_in_place(world.maps, VIP) == (VIP, CLUSTER_IP)
    assert address_in_place(world.maps, HOST) == (HOST, NODE)


@pytest.mark.parametrize("moment", range(6))
def test_a_crash_while_addresses_are_written_costs_none_its_place(world: World, moment: int):
    world.watch.crash_at = len(world.watch.written) + moment
    with suppress(CrashError):
        world.sync.apply(vip("10.96.0.1"))
    world.watch.crash_at = None
    world.resync(vip("10.96.0.1"))
    assert address_in_place(world.maps, VIP) == (VIP, CLUSTER_IP)
    assert Lookups(world.maps).filter_flags(VIP) == CLUSTER_IP
