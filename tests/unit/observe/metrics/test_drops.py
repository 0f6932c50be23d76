# SPDX-License-Identifier: Apache-2.0
"""Drops by reason and device, while devices come, go, and get other names."""

import pytest

from ebpflb.dataplane.layout.enums import DropPlace, DropReason
from ebpflb.dataplane.layout.structs import LbDropKey, u64
from ebpflb.observe.metrics.reader import DropTotals
from tests.memory_maps import memory_maps


@pytest.fixture
def maps():
    return memory_maps()


class Devices:
    """Names by ifindex, and what was dropped at each."""

    def __init__(self, maps, names):
        self.maps = maps
        self.names = names
        self.drops = DropTotals(self._name_of)

    def _name_of(self, ifindex):
        if ifindex not in self.names:
            raise OSError
        return self.names[ifindex]

    def drop(self, ifindex, count=1):
        """So many in all by now."""
        key = LbDropKey(DropReason.LB_DROP_NO_ROUTE, ifindex)
        table = self.maps["lb_count_drop"]
        table.update(bytes(key), bytes(u64(count)).ljust(table.value_size, b"\0"))

    def read(self):
        found = self.drops.read(self.maps)
        assert {reason for reason, _ in found} == {"no_route"}
        return {name: count for (_, name), count in found.items()}


@pytest.fixture
def devices(maps):
    return Devices(maps, {7: "eth0", 8: "eth0"})


def test_drops_keep_the_name_of_a_device_that_is_gone(devices):
    for ifindex in (7, 8, 9, DropPlace.LB_DROP_AT_POD, DropPlace.LB_DROP_AT_SOCKET):
        devices.drop(ifindex)
    expected = {"eth0": 2, "gone": 1, "pods": 1, "sockets": 1}
    assert devices.read() == expected
    devices.names.clear()
    assert devices.read() == expected
    devices.drop(7, count=5)
    assert devices.read() == {**expected, "eth0": 6}


def test_drops_at_a_device_that_has_another_name_now_count_for_that(devices):
    devices.drop(7, count=3)
    assert devices.read() == {"eth0": 3}
    devices.names[7] = "uplink0"
    assert devices.read() == {"eth0": 3}
    devices.drop(7, count=5)
    assert devices.read() == {"eth0": 3, "uplink0": 2}


def test_drops_go_on_in_other_maps(devices):
    devices.drop(7, count=3)
    assert devices.read() == {"eth0": 3}
    devices.maps = memory_maps()
    assert devices.drops.read(devices.maps) == {("no_route", "eth0"): 3}
    devices.drop(7)
    assert devices.read() == {"eth0": 4}
