# SPDX-License-Identifier: Apache-2.0
"""The maps of host devices; no program reads an address while it is being written."""

from dataclasses import replace

import pytest

from ebpflb.dataplane.attach.device_maps import (
    remove_other_subnets,
    write_devices,
    write_subnets,
    write_uplinks,
)
from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change
from ebpflb.dataplane.explain.lookups import Lookups
from ebpflb.dataplane.layout.capacity import UPLINKS
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.dataplane.layout.structs import LbAddr, LbDevice, LbUplink
from ebpflb.model.address import parse_address
from ebpflb.model.source_ranges import parse_prefix
from tests.memory_maps import memory_maps

IPV4, IPV6 = parse_address("192.0.2.1"), parse_address("2001:db8::1")
OTHER, ANOTHER = parse_address("192.0.2.2"), parse_address("192.0.2.3")
NEXT_HOP = parse_address("192.0.2.9")


def host(ifindex, snat4=IPV4, snat6=IPV6, kind=DeviceKind.LB_DEVICE_HOST):
    return Device(ifindex, f"eth{ifindex}", kind, ethernet=True, up=True, snat4=snat4, snat6=snat6)


@pytest.fixture
def table():
    return memory_maps()["lb_uplinks"]


def write(table, *devices):
    return write_uplinks(table, devices, quiesce=lambda: None)


def uplinks(table):
    """Those in force, by place."""
    found = {number: LbUplink.from_buffer_copy(value) for number, (_, value) in numbered(table)}
    return {number: each for number, each in found.items() if each.ifindex}


def numbered(table):
    return enumerate(table.items())


def test_a_host_device_has_the_place_of_its_ifindex(table):
    assert write(table, host(2), host(UPLINKS + 3, OTHER, None)) is Change.REPLACED
    assert uplinks(table) == {
        2: LbUplink(2, 0, LbAddr.from_buffer_copy(IPV4), LbAddr.from_buffer_copy(IPV6)),
        3: LbUplink(UPLINKS + 3, 0, LbAddr.from_buffer_copy(OTHER)),
    }


def test_what_is_written_already_is_left_alone(table):
    write(table, host(2))
    assert write(table, host(2)) is Change.KEPT


def test_workloads_have_none(table):
    assert write(table, host(2, kind=DeviceKind.LB_DEVICE_WORKLOAD)) is Change.KEPT


def test_of_two_with_one_place_the_oldest_has_it(table):
    write(table, host(2 + UPLINKS), host(2, OTHER), host(2 + 2 * UPLINKS))
    assert {place: each.ifindex for place, each in uplinks(table).items()} == {2: 2}


def test_a_device_that_goes_leaves_its_place_to_another(table):
    write(table, host(2), host(2 + UPLINKS, OTHER))
    write(table, host(2 + UPLINKS, OTHER))
    assert uplinks(table)[2] == LbUplink(
        2 + UPLINKS, 0, LbAddr.from_buffer_copy(OTHER), LbAddr.from_buffer_copy(IPV6)
    )
    write(table)
    assert not any(any(value) for _, value in table.items())


def test_addresses_change_only_while_nobody_reads_them(table):
    write(table, host(2))
    phases = []
    write_uplinks(table, [host(2, OTHER)], quiesce=lambda: phases.append(element(table, 2)))
    before, after = element_of(0, IPV4), element_of(0, OTHER)
    assert phases == [before, after]
    assert element(table, 2) == element_of(2, OTHER)


def element(table, place):
    return LbUplink.from_buffer_copy(table.lookup(place.to_bytes(4, "little")))


def element_of(ifindex, snat4):
    return LbUplink(ifindex, 0, LbAddr.from_buffer_copy(snat4), LbAddr.from_buffer_copy(IPV6))


def test_lookups_ask_the_hash_for_the_others():
    maps = memory_maps()
    write(maps["lb_uplinks"], host(2))
    other = LbDevice(kind=1, snat4=LbAddr.from_buffer_copy(OTHER))
    maps["lb_devices"].update((2 + UPLINKS).to_bytes(4, "little"), bytes(other))
    maps["lb_settings"].update(bytes(4), bytes(maps["lb_settings"].value_size))
    lookups = Lookups(maps)
    assert lookups.masquerade_source(2, parse_address("2001:db8::9")) == IPV6
    assert lookups.masquerade_source(2 + UPLINKS, NEXT_HOP) == OTHER
    assert lookups.masquerade_source(2 + 2 * UPLINKS, NEXT_HOP) is None


def test_of_several_subnets_that_of_the_next_hop_decides():
    maps = memory_maps()
    wide, narrow = parse_prefix("198.51.100.0/24"), parse_prefix("198.51.100.64/26")
    device = replace(host(2), subnets={wide: OTHER, narrow: ANOTHER})
    assert write_subnets(maps["lb_subnets"], [device, host(3)]) is Change.REPLACED
    write(maps["lb_uplinks"], device)
    write_devices(maps["lb_devices"], [device, host(3)])
    lookups = Lookups(maps)
    told = {
        text: lookups.masquerade_source(2, parse_address(text))
        for text in ("198.51.100.1", "198.51.100.65", "192.0.2.9")
    }
    assert told == {"198.51.100.1": OTHER, "198.51.100.65": ANOTHER, "192.0.2.9": IPV4}
    assert lookups.masquerade_source(3, parse_address("198.51.100.1")) == IPV4
    assert remove_other_subnets(maps["lb_subnets"], [device]) is Change.KEPT
    assert remove_other_subnets(maps["lb_subnets"], [host(2)]) is Change.DETACHED
    assert not list(maps["lb_subnets"].items())
