# SPDX-License-Identifier: Apache-2.0
"""Services over maps in memory, the counters that programs would write there, and the scrape."""

from dataclasses import replace
from math import inf
from sys import byteorder

import pytest

from ebpflb.dataplane.flows.records import StoredFlow
from ebpflb.dataplane.layout.enums import (
    CtState,
    Direction,
    DropPlace,
    DropReason,
    FlowLost,
    FlowPath,
    HistogramKind,
)
from ebpflb.dataplane.layout.structs import (
    LbConntrack,
    LbCounts,
    LbDropKey,
    LbHistogram,
    LbTraffic,
    u64,
)
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import WILDCARD, Family, Protocol, parse_address
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints, SlicePort
from ebpflb.model.node import Node
from ebpflb.model.plan import FrontendKey, FrontendType
from ebpflb.model.service import ServiceName
from ebpflb.observe.endpoint_locations import EndpointLocations
from ebpflb.observe.metrics.latency import ServiceLatency
from ebpflb.observe.metrics.reader import (
    DropTotals,
    MapReader,
    OptionalSeries,
    read_distributions,
    read_lost,
)
from ebpflb.observe.metrics.service_readings import (
    BackendReading,
    Endpoints,
    PortReading,
)
from ebpflb.source.interface import SourceEvent
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import record
from tests.unit.dataplane.desired import backends, by_service, frontend, named

SECOND = 1_000_000_000
NODE_PORT = FrontendKey(WILDCARD[Family.IPV4], 30000, Protocol.TCP)
POD, OTHER_POD = "10.1.0.1", "10.1.0.2"
BOTH = backends(POD, OTHER_POD)


class World:
    """A node: `maps` and `usage` are what a Reader asks of it."""

    def __init__(self) -> None:
        self.maps = memory_maps()
        self.usage = {"lb_slots": (1, 8)}
        self.locations = EndpointLocations("node-a")
        self.now = 100 * SECOND
        self.sync = Sync(self.maps, quiesce=lambda: None, grace=0)
        self.reader = MapReader(
            self, self.locations, OptionalSeries(backends=True), {}, lambda: self.now
        )

    def serve(self, *frontends):
        self.sync.resync(by_service(*frontends))

    def count(self, name, place, **fields):
        """Add to the counters of the first CPU; traffic is what it is then."""
        table, key = self.maps[name], place.to_bytes(4, byteorder)
        value = table.lookup(key) or b""
        counts = LbCounts.from_buffer_copy(value)
        for field, number in fields.items():
            old = getattr(counts, field)
            setattr(counts, field, old + number if isinstance(number, int) else number)
        table.update(key, bytes(counts) + value[len(bytes(counts)) :])

    def flow(self, number, **fields):
        entry = LbConntrack(direction=Direction.LB_DIR_ORIGINAL, serial=1, **fields)
        self.maps["lb_conntrack"].update(number.to_bytes(40, "big"), bytes(entry))

    def note(self, *items):
        self.locations.note(SourceEvent(items, (), {}, initial=True, complete=True))

    def port(self) -> PortReading:
        (port,) = self.reader.read().ports
        return port

    def backends(self) -> list[BackendReading]:
        return sorted(self.reader.read().backends, key=lambda each: each.backend)


@pytest.fixture
def world():
    made = World()
    made.serve(frontend(choice=BOTH))
    made.reader.begin()
    return made


def test_a_node_that_has_not_started_has_nothing(world):
    world.maps = None
    assert world.reader.read().ports == ()


def test_a_service_without_traffic_has_no_series(world):
    assert world.reader.read().ports == []


def test_endpoints_are_counted_by_where_they_are_and_whether_they_end(world):
    here = backends("10.1.0.3", local=True)
    going = backends("10.1.0.4", local=True, terminating=True)
    world.serve(frontend(choice=BOTH), frontend("10.96.0.2", here), frontend("10.96.0.3", going))
    world.count("lb_count_front", 0, connections=1)
    assert world.port().endpoints == Endpoints(local=1, remote=2, terminating=1)


def test_traffic_is_summed_by_frontend_type_over_families_and_cpus(world):
    node_port = frontend(key=NODE_PORT, type=FrontendType.NODE_PORT, choice=BOTH)
    world.serve(frontend(choice=BOTH), frontend("fd00::1", choice=BOTH), node_port)
    for place, number in enumerate((1, 10, 100)):
        world.count("lb_count_front", place, connections=number, reply=LbTraffic(5, 6))
    port = world.port()
    assert port.labels.port == "80"
    assert {kind: each.connections for kind, each in port.traffic.items()} == {
        "ClusterIP": 11,
        "NodePort": 100,
    }
    assert port.traffic["ClusterIP"].reply_bytes == 12


def test_a_port_with_a_name_goes_by_it(world):
    world.serve(frontend(service=named("web", "http")))
    world.count("lb_count_front", 0, connections=1)
    assert world.port().labels.port == "http"


def test_what_a_removed_frontend_had_counted_stays(world):
    world.serve(frontend(choice=BOTH), frontend("10.96.0.2", BOTH))
    world.count("lb_count_front", 0, connections=1)
    world.count("lb_count_front", 1, connections=2)
    world.reader.read()
    world.count("lb_count_front", 1, connections=4)
    world.serve(frontend(choice=BOTH))
    assert world.port().traffic["ClusterIP"].connections == 7
    world.sync.collect()
    world.serve(frontend(choice=BOTH), frontend("10.96.0.9", BOTH))
    world.count("lb_count_front", 1, connections=8)
    assert world.port().traffic["ClusterIP"].connections == 15


def test_a_service_that_is_gone_has_no_series(world):
    world.count("lb_count_front", 0, connections=1)
    world.reader.read()
    world.sync.apply({ServiceName("default", "web"): ()})
    assert world.reader.read().ports == []
    assert world.reader.read().backends == []


def test_sums_outlive_a_set_of_maps(world):
    world.count("lb_count_front", 0, connections=5)
    world.reader.read()
    world.maps = memory_maps()
    world.sync = Sync(world.maps, quiesce=lambda: None, epoch=1 << 16)
    world.serve(frontend(choice=BOTH))
    assert world.port().traffic["ClusterIP"].connections == 5
    world.count("lb_count_front", 0, connections=2)
    assert world.port().traffic["ClusterIP"].connections == 7


def test_a_frontend_that_is_torn_for_a_moment_counts_once(world):
    world.count("lb_count_front", 0, connections=5)
    world.reader.read()
    word = world.maps["lb_current"].lookup(bytes(4))
    world.maps["lb_current"].update(bytes(4), bytes(8))
    assert world.port().traffic["ClusterIP"].connections == 5
    world.maps["lb_current"].update(bytes(4), word)
    assert world.port().traffic["ClusterIP"].connections == 5


def test_what_is_there_now_and_since_when(world):
    world.count("lb_count_front", 0, connections=3)
    world.flow(1, backend=0, created=90 * SECOND)
    world.flow(2, backend=1, created=95 * SECOND)
    world.flow(3, backend=1, created=1, state=CtState.LB_CT_CLOSED)
    port = world.port()
    assert (port.active, port.oldest_seconds) == (2, 10.0)


def test_connections_of_endpoints_that_are_gone(world):
    world.count("lb_count_front", 0, connections=3)
    for number, place in enumerate((0, 1, 1)):
        world.flow(number, backend=place, created=90 * SECOND)
    assert world.port().on_removed == 0
    world.serve(frontend(choice=backends(POD), serving=backends(OTHER_POD).backends))
    assert world.port().on_removed == 0
    world.serve(frontend(choice=backends(POD)))
    assert (world.port().active, world.port().on_removed) == (3, 2)
    world.serve(frontend())
    assert world.port().on_removed == 3
    world.serve(frontend(choice=BOTH))
    assert (world.port().active, world.port().on_removed) == (3, 0)


def test_connections_that_leave_the_node_and_its_zone(world):
    world.note(Node("node-a", zone="z1"), pods(POD, zone="z2"), pods(OTHER_POD, zone="z1"))
    world.count("lb_count_front", 0, connections=10)
    world.count("lb_count_back", 0, connections=3)
    world.count("lb_count_back", 1, connections=7)
    assert (world.port().cross_node, world.port().cross_zone) == (10, 3)
    world.serve(frontend(choice=backends(POD)))
    world.count("lb_count_back", 0, connections=1)
    assert (world.port().cross_node, world.port().cross_zone) == (11, 4)


def test_bytes_that_leave_the_zone():
    world = World()
    world.serve(frontend(choice=BOTH))
    world.note(Node("node-a", zone="z1"), pods(POD, zone="z2"), pods(OTHER_POD, zone="z1"))
    world.count("lb_count_front", 0, connections=1)
    world.count("lb_count_back", 0, connections=1, original=LbTraffic(1, 1000))
    world.reader.begin()
    world.count("lb_count_back", 0, original=LbTraffic(2, 1500), reply=LbTraffic(3, 20))
    world.count("lb_count_back", 1, connections=1, reply=LbTraffic(1, 7))
    assert (world.port().cross_zone, world.port().cross_zone_bytes) == (0, 520)
    world.count("lb_count_back", 0, connections=1, reply=LbTraffic(4, 100))
    assert (world.port().cross_zone, world.port().cross_zone_bytes) == (1, 600)


def test_crossings_go_on_when_all_backends_were_gone_for_a_while(world):
    world.note(Node("node-a", zone="z1"), pods(POD, zone="z2"), pods(OTHER_POD, zone="z1"))
    world.count("lb_count_front", 0, connections=10)
    world.count("lb_count_back", 0, connections=3)
    world.count("lb_count_back", 1, connections=7)
    assert (world.port().cross_node, world.port().cross_zone) == (10, 3)
    world.serve(frontend())
    world.sync.collect()
    api = frontend("10.96.0.2", backends("10.1.0.3", "10.1.0.4"), service=named("api"))
    world.serve(frontend(), api)
    gone = next(port for port in world.reader.read().ports if port.labels.service == "web")
    assert (gone.endpoints, gone.imbalance) == (Endpoints(), None)
    assert (gone.cross_node, gone.cross_zone) == (10, 3)
    world.serve(frontend(choice=BOTH))
    world.count("lb_count_back", 2, connections=1)
    assert (world.port().cross_node, world.port().cross_zone) == (11, 4)


def test_what_was_counted_before_the_start_is_no_crossing():
    world = World()
    world.serve(frontend(choice=BOTH))
    world.count("lb_count_front", 0, connections=1)
    world.count("lb_count_back", 0, connections=3)
    world.reader.begin()
    world.count("lb_count_back", 0, connections=2)
    assert world.port().cross_node == 2


def test_what_was_counted_between_the_start_and_the_first_scrape_is_a_crossing():
    world = World()
    world.serve(frontend(choice=BOTH))
    world.count("lb_count_front", 0, connections=1)
    world.reader.begin()
    world.count("lb_count_back", 0, connections=2)
    assert world.port().cross_node == 2


def test_what_is_noted_after_the_first_scrape_takes_nothing_away(world):
    world.count("lb_count_front", 0, connections=1)
    assert world.port().cross_node == 0
    world.count("lb_count_back", 0, connections=2)
    world.reader.begin()
    assert world.port().cross_node == 2


def test_balance_is_of_the_backends_there_are_now(world):
    world.count("lb_count_front", 0, connections=1)
    world.count("lb_count_back", 0, connections=15)
    assert world.port().imbalance is None
    world.count("lb_count_back", 1, connections=5)
    assert world.port().imbalance == 1.5
    world.serve(frontend(choice=backends(POD, OTHER_POD, "10.1.0.3")))
    assert world.port().imbalance is None
    for place in range(3):
        world.count("lb_count_back", place, connections=10)
    assert world.port().imbalance == 1.0


def test_balance_is_of_the_family_with_the_most_connections(world):
    six = frontend("fd00::1", backends("fd00:1::1", "fd00:1::2"))
    world.serve(frontend(choice=BOTH), six)
    world.count("lb_count_front", 0, connections=1)
    for place in (0, 1):
        world.count("lb_count_back", place, connections=20)
    assert world.port().imbalance == 1.0


def test_a_backend_with_where_it_is(world):
    world.note(pods(POD, node_name="node-b", zone="z2"))
    world.count("lb_count_back", 0, connections=3, failed=1, original=LbTraffic(1, 2))
    world.flow(1, backend=0)
    first, second = world.backends()
    assert (first.backend, first.node, first.zone) == ("10.1.0.1:8080", "node-b", "z2")
    assert first.traffic[:4] == (3, 0, 0, 1)
    assert (first.traffic.original_bytes, first.active) == (2, 1)
    assert (second.backend, second.node, second.zone) == ("10.1.0.2:8080", "", "")


def test_a_backend_that_left_stays_while_it_is_used(world):
    world.flow(1, backend=1)
    world.serve(frontend(choice=backends(POD)))
    assert [each.backend for each in world.backends()] == ["10.1.0.1:8080", "10.1.0.2:8080"]
    world.maps["lb_conntrack"].delete((1).to_bytes(40, "big"))
    assert [each.backend for each in world.backends()] == ["10.1.0.1:8080"]


def test_a_backend_that_flaps_is_one_and_takes_no_more_room(world):
    for _ in range(20):
        world.count("lb_count_back", 1, connections=2)
        (_, backend) = world.backends()
        world.serve(frontend(choice=backends(POD)))
        world.sync.collect()
        world.serve(frontend(choice=BOTH))
    assert backend.traffic.connections == 40
    assert max(map(len, world.reader._traffic._by_backend._groups.values())) <= 2


def test_how_full_the_maps_are(world):
    world.flow(1, backend=0)
    entries = world.reader.read().entries
    assert entries["lb_slots"] == (1, 8)
    assert entries["lb_conntrack"] == (1, world.maps["lb_conntrack"].max_entries)
    assert entries["lb_affinity"][0] == 0


def test_what_nobody_wants_is_not_there(world):
    world.count("lb_count_front", 0, connections=1)
    reading = MapReader(world, world.locations, OptionalSeries(services=False), {}).read()
    assert not reading.ports
    assert not reading.backends
    assert not reading.latency


def test_latency_has_the_labels_of_its_port_for_as_long_as_that_exists(world):
    latency = ServiceLatency()
    latency.count(0, StoredFlow(record(), 0, frontend().service))
    reader = MapReader(world, world.locations, OptionalSeries(latency=latency), {})
    assert [each.labels.port for each in reader.read().latency] == ["80"]
    world.serve()
    assert reader.read().latency == []


def pods(*texts, **fields) -> EndpointSlice:
    endpoints = tuple(Endpoint(parse_address(text), **fields) for text in texts)
    return EndpointSlice(
        "default", f"web-{texts[0]}", "web", Family.IPV4, (), PackedEndpoints(endpoints)
    )


def standing(*texts, **fields) -> EndpointSlice:
    """As pods(), of the port of the Service."""
    return replace(pods(*texts, **fields), ports=(SlicePort("", Protocol.TCP, 8080),))


@pytest.mark.parametrize(
    ("pieces", "unusable"),
    [
        ([], 0),
        ([standing(POD, OTHER_POD, ready=False), standing("10.1.0.3", ready=False)], 3),
        ([standing(POD, ready=False, terminating=True)], 0),
        ([replace(standing(POD, ready=False), service="other")], 0),
        ([replace(standing(POD), ports=(SlicePort("", Protocol.UDP, 8080),))], 0),
    ],
    ids=["scaled to zero", "not ready", "going away", "of another Service", "of another port"],
)
def test_a_port_that_is_refused_says_whether_it_has_endpoints_at_all(world, pieces, unusable):
    world.note(*pieces)
    world.serve(frontend())
    world.count("lb_count_front", 0, refused=1)
    assert world.port().unusable == unusable
    world.serve(frontend(choice=BOTH))
    assert world.port().unusable is None


@pytest.fixture
def maps():
    return memory_maps()


def observe(maps, path, kind, sum_=0, **buckets):
    """Each of two CPUs has the same; bits_4=2: two values of four significant bits."""
    counted = LbHistogram(sum=sum_)
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
