# SPDX-License-Identifier: Apache-2.0
"""The open connections of Service ports, as far as the programs count them."""

from typing import Any

from ebpflb.dataplane.layout.records import SocketRecord, pack_open
from ebpflb.model.address import format_address
from ebpflb.words.backup import BackupUse
from tests.unit.dataplane.desired import backends, by_service, frontend, named
from tests.unit.dataplane.world import World

WEB, API = named("web"), named("api")
SPILLS: dict[str, Any] = {"counts_open": True, "backup": BackupUse.SPILL}


def put(world: World, numbers: dict[str, int]) -> None:
    """By address, wherever its backend is in the maps."""
    for index, value in world.maps["lb_backends"].items():
        address = format_address(SocketRecord.unpack(value).address)
        if address in numbers:
            world.maps["lb_open"].update(index, pack_open(numbers[address]))


def test_they_are_summed_over_the_backends_of_both_families():
    world = World()
    four = frontend(choice=backends("10.1.0.1", "10.1.0.2"), **SPILLS)
    six = frontend("fd00::1", backends("fd01::1"), **SPILLS)
    other = frontend("10.96.0.2", backends("10.1.0.9"), service=API)
    world.change(by_service(four, six, other))
    put(world, {"10.1.0.1": 5, "10.1.0.2": 6, "fd01::1": 7, "10.1.0.9": 100})
    assert world.sync.open_connections([WEB]) == {WEB: 18}
    assert world.sync.open_connections([WEB, API]) == {WEB: 18, API: 100}


def test_a_port_that_is_not_in_the_maps_has_none():
    assert World().sync.open_connections([WEB]) == {}


def test_the_backends_that_it_has_no_more_do_not_count():
    world = World()
    world.change(by_service(frontend(choice=backends("10.1.0.1", "10.1.0.2"), **SPILLS)))
    put(world, {"10.1.0.1": 5, "10.1.0.2": 6})
    world.change(by_service(frontend(choice=backends("10.1.0.1"), counts_open=True)))
    assert world.sync.open_connections([WEB]) == {WEB: 5}
