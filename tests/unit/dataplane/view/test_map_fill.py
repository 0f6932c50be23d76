# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.enums import FlowLost
from ebpflb.dataplane.layout.structs import u32, u64
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.dump import MapFill, map_fills, used_entries
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend, named


@pytest.fixture
def maps():
    return memory_maps()


def used(maps):
    found = {name: used_entries(maps, name) for name in maps}
    return {name: count for name, count in found.items() if count}


def test_empty_maps_use_nothing(maps):
    assert used(maps) == {}


def test_what_is_in_force_counts(maps):
    sync = Sync(maps, quiesce=lambda: None)
    shared = backends("10.1.0.1", "10.1.0.2")
    sync.resync(
        by_service(
            frontend(choice=shared, others=backends("10.1.0.1")),
            frontend("10.96.0.9", shared),
            frontend("10.96.0.7", shared, service=named("a")),
        )
    )
    expected = {
        "lb_frontends": 3,
        "lb_current": 3,
        "lb_count_front": 3,
        "lb_descs": 3,
        "lb_slots": 5,
        "lb_backends": 4,
        "lb_count_back": 4,
        "lb_names": 2,
        "lb_addrs": 3,
        "lb_addr_flags": 3,
        "lb_dest_filter": 6,
    }
    assert used(maps) == expected
    sync.apply(by_service(frontend(choice=backends("10.1.0.2"))))
    assert used(maps) == {
        **dict.fromkeys(("lb_frontends", "lb_current", "lb_count_front", "lb_descs"), 2),
        **dict.fromkeys(("lb_slots", "lb_backends", "lb_count_back"), 3),
        "lb_names": 2,
        **dict.fromkeys(("lb_addrs", "lb_addr_flags"), 3),
        "lb_dest_filter": 6,
    }


def test_other_arrays_count_what_is_not_zero(maps):
    maps["lb_flow_lost"].update(bytes(u32(FlowLost.LB_LOST_RATE)), bytes(u64(1)) + bytes(8))
    assert used(maps) == {"lb_flow_lost": 1}


def test_every_map_is_listed_by_name_with_its_memory(maps):
    fills = map_fills(maps)
    assert [each.name for each in fills] == sorted(MAPS)
    assert MapFill("lb_frontends", "hash", 0, 512, 512 * 24) in fills
    assert MapFill("lb_flow_lost", "percpu_array", 0, 2, 2 * (4 + 16)) in fills
