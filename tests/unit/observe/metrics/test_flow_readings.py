# SPDX-License-Identifier: Apache-2.0
from math import inf
from sys import byteorder

import pytest

from ebpflb.dataplane.layout.enums import DropPlace, DropReason, FlowLost, FlowPath, HistogramKind
from ebpflb.dataplane.layout.structs import DropKey, Histogram, u64
from ebpflb.dataplane.memory import memory_maps
from ebpflb.observe.metrics.flow_readings import Drops, read_distributions, read_lost


@pytest.fixture
def maps():
    return memory_maps()


def observe(maps, path, kind, sum_=0, **buckets):
    """Each of two CPUs has the same; bits_4=2: two values of four significant bits."""
    counted = Histogram(sum=sum_)
    for name, number in buckets.items():
        counted.buckets[int(name.removeprefix("bits_"))] = number
    index = len(HistogramKind) * (path - 1) + kind
    maps["lb_histograms"].update(index.to_bytes(4, byteorder), 2 * bytes(counted))


def test_times_become_seconds_and_buckets_cumulative(maps):
    kind = HistogramKind.LB_HISTOGRAM_RTT
    observe(maps, FlowPath.LB_PATH_TC, kind, 1000, bits_0=1, bits_10=2, bits_39=4)
    found = read_distributions(maps)["ebpflb_flow_rtt_seconds", "tc"]
    assert found.sum == pytest.approx(0.002)
    assert found.buckets[0] == (16 * 1e-6, 2)
    assert dict(found.buckets)[1024 * 1e-6] == 6
    assert found.buckets[-1] == (inf, 14)


def test_bytes_are_whole_numbers_up_to_the_end_of_a_bucket(maps):
    kind = HistogramKind.LB_HISTOGRAM_BYTES
    observe(maps, FlowPath.LB_PATH_SOCKET, kind, 70, bits_6=1, bits_7=1)
    found = read_distributions(maps)["ebpflb_flow_bytes", "socket"]
    assert found.sum == 140
    assert found.buckets[:2] == [(63, 2), (255, 4)]


def test_there_are_few_buckets_and_they_ascend(maps):
    found = read_distributions(maps)
    assert len(found) == 6
    for buckets, _ in found.values():
        bounds = [bound for bound, _ in buckets]
        assert len(bounds) <= 20
        assert bounds == sorted(bounds)


def test_lost_records_by_reason(maps):
    place = FlowLost.LB_LOST_RATE.to_bytes(4, byteorder)
    maps["lb_flow_lost"].update(place, bytes(u64(2)) + bytes(u64(3)))
    assert read_lost(maps) == {"ring_full": 0, "rate_limit": 5}


class Devices:
    """Names by ifindex, and what was dropped at each."""

    def __init__(self, maps, names):
        self.maps = maps
        self.names = names
        self.drops = Drops(self._name_of)

    def _name_of(self, ifindex):
        if ifindex not in self.names:
            raise OSError
        return self.names[ifindex]

    def drop(self, ifindex, count=1):
        """So many in all by now."""
        key = DropKey(DropReason.LB_DROP_NO_ROUTE, ifindex)
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
