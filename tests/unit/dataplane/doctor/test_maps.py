# SPDX-License-Identifier: Apache-2.0
from ebpflb.dataplane.doctor.pins import check_maps
from tests.memory_maps import memory_maps


def fill(maps, count, name="lb_conntrack"):
    for number in range(count):
        maps[name].update(number.to_bytes(40, "big"), bytes(maps[name].value_size))
    return [(str(each.severity), each.where, each.what) for each in check_maps(maps)]


def test_maps_with_room_are_well():
    maps = memory_maps({"lb_conntrack": 10})
    assert fill(maps, 8) == [("ok", "", "the fullest is lb_conntrack, 80%")]


def test_above_four_fifths_a_map_is_a_warning():
    maps = memory_maps({"lb_conntrack": 10})
    assert fill(maps, 9) == [("warning", "lb_conntrack", "90% full: 9 of 10")]


def test_ended_flows_that_are_evicted_are_no_trouble():
    maps = memory_maps({"lb_ct_short": 10})
    assert fill(maps, 9, "lb_ct_short") == [
        ("ok", "", "the fullest is lb_ct_short, 90%"),
        ("note", "lb_ct_short", "90% full: 9 of 10"),
    ]
