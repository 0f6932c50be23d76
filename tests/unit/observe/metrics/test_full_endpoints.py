# SPDX-License-Identifier: Apache-2.0
"""A Service port with a limit says how many of its endpoints are full."""

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.records import pack_index, pack_open
from ebpflb.dataplane.layout.structs import LbCounts
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.snapshot import read_snapshot
from ebpflb.dataplane.view.traffic import Traffic
from ebpflb.model.extensions.limits import NO_LIMITS, Limits, OpenLimit
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.metrics.service_readings import PortNumbers, read_ports
from tests.builders import NODE
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend


def served(limits: Limits) -> MapSet:
    """One port that has had traffic, with the backends 0 and 1."""
    maps = memory_maps()
    both = backends("10.1.0.1", "10.1.0.2")
    limited = frontend(choice=both, limits=limits, counts_open=limits.counts_open)
    Sync(maps, quiesce=lambda: None).resync(by_service(limited))
    maps["lb_count_front"].update(bytes(4), bytes(LbCounts(connections=1)) * 2)
    return maps


def full(maps: MapSet) -> int | None:
    snapshot, numbers = read_snapshot(maps), PortNumbers()
    numbers.update(snapshot)
    traffic = Traffic().by_type(snapshot)
    (port,) = read_ports(snapshot, traffic, {}, numbers.labels(), EndpointLocations(NODE), 0)
    return port.full


def test_those_with_as_many_connections_as_they_may_have():
    maps = served(Limits(OpenLimit(7)))
    for count, wanted in ((0, 0), (6, 0), (7, 1), (8, 1)):
        maps["lb_open"].update(pack_index(0), pack_open(count))
        assert full(maps) == wanted


def test_nothing_is_said_without_a_limit():
    for limits in (NO_LIMITS, Limits(None, OpenLimit(7))):
        assert full(served(limits)) is None
