# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from sys import byteorder

import pytest

from ebpflb.dataplane.layout import structs
from ebpflb.dataplane.layout.enums import Direction
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.rates import (
    ServiceTraffic,
    TrafficSample,
    TrafficSampler,
    rates,
)
from ebpflb.dataplane.view.traffic import BackendTraffic
from ebpflb.model.address import Protocol, SocketAddress, parse_address
from ebpflb.model.flow import Counts
from ebpflb.model.plan import Choice, FrontendType, IfEmpty
from ebpflb.model.service import ServicePortName, TrafficPolicy
from ebpflb.words.backup import BackupUse
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend, named

WEB = ServicePortName("default", "web", "http", Protocol.TCP)
CLUSTER_IP, NODE_PORT = FrontendType.CLUSTER_IP, FrontendType.NODE_PORT


def place(text: str) -> SocketAddress:
    return SocketAddress(parse_address(text), 8080)


ONE, TWO, SIX = map(place, ("10.1.0.1", "10.1.0.2", "fd00::1"))
DROP = Choice((), IfEmpty.DROP)
EXTERNAL = {"type": FrontendType.EXTERNAL_IP, "external_policy": TrafficPolicy.LOCAL}


def backend(counts=Counts(), active=0, **fields) -> BackendTraffic:  # noqa: B008  cannot change
    plain = {"local": True, "terminating": False, "offered": True}
    return BackendTraffic(active=active, counts=counts, **{**plain, **fields})


def got(connections, **fields) -> Counts:
    """What a backend that answers counts."""
    return Counts(connections, reply_packets=connections, **fields)


def rate(before, after, name=WEB, seconds=2.0):
    """The row of one Service."""
    old = {} if before is None else {name: before}
    (found,) = rates(TrafficSample(10.0, old), TrafficSample(10.0 + seconds, {name: after}))
    return found


def of_backends(before, after, **fields):
    """The row of a Service whose backends are these; the frontend counts nothing."""
    return rate(
        ServiceTraffic({}, before), ServiceTraffic({}, after, **fields), fields.get("name", WEB)
    )


def test_what_was_counted_between_two_samples_is_per_second():
    old = Counts(10, 1, 2, 3, 4, 100, 1000, 200, 2000)
    new = Counts(14, 3, 6, 9, 12, 100, 1010, 200, 2020)
    found = rate(ServiceTraffic({CLUSTER_IP: old}, {}), ServiceTraffic({CLUSTER_IP: new}, {}))
    assert (found.namespace, found.service, found.port, found.protocol) == (*WEB[:3], "TCP")
    assert (found.connections, found.refused, found.dropped, found.failed) == (2, 1, 2, 3)
    assert (found.retransmits, found.original_bytes, found.reply_bytes) == (4, 5, 10)
    assert found.lost == 6


def test_frontends_of_all_types_add_up_and_those_that_are_gone_take_nothing_away():
    before = ServiceTraffic({CLUSTER_IP: Counts(5), NODE_PORT: Counts(100)}, {})
    assert rate(before, ServiceTraffic({CLUSTER_IP: Counts(9)}, {})).connections == 2
    both = ServiceTraffic({CLUSTER_IP: Counts(7), NODE_PORT: Counts(102)}, {})
    assert rate(before, both).connections == 2


def test_counters_that_started_over_count_from_zero():
    before, after = (
        ServiceTraffic({CLUSTER_IP: Counts(50)}, {}),
        ServiceTraffic({CLUSTER_IP: Counts(4)}, {}),
    )
    assert rate(before, after).connections == 2


def test_a_new_service_counts_from_zero_and_one_that_is_gone_has_no_row():
    assert rate(None, ServiceTraffic({CLUSTER_IP: Counts(4)}, {})).connections == 2
    assert rates(TrafficSample(0, {WEB: ServiceTraffic({}, {})}), TrafficSample(1, {})) == []


def test_the_spread_is_the_largest_share_against_the_even_one():
    before = {ONE: backend(got(100)), TWO: backend(got(100))}
    after = {ONE: backend(got(130)), TWO: backend(got(110), local=False)}
    found = of_backends(before, after)
    assert (found.largest_share, found.even_share, found.imbalance) == (0.75, 0.5, 1.5)
    assert found.cross_node_share == 0.25
    assert [each.share for each in found.backends] == [0.75, 0.25]
    assert [each.connections for each in found.backends] == [15, 5]


def test_without_new_connections_the_active_ones_are_shared():
    after = {ONE: backend(active=3), TWO: backend(active=1, local=False)}
    found = of_backends(after, after)
    assert (found.largest_share, found.cross_node_share, found.active) == (0.75, 0.25, 4)


def test_without_any_connection_there_is_no_share():
    after = {ONE: backend(), TWO: backend()}
    found = of_backends(after, after)
    assert (found.largest_share, found.even_share, found.cross_node_share) == (None, None, None)
    assert (found.imbalance, found.endpoints, found.troubles) == (0, 2, ())


def test_backends_are_compared_within_their_family():
    before = {ONE: backend(), TWO: backend(), SIX: backend()}
    after = {ONE: backend(got(50)), TWO: backend(got(50)), SIX: backend()}
    found = of_backends(before, after)
    assert (found.largest_share, found.even_share, found.troubles) == (0.5, 0.5, ())


def test_a_backend_that_gets_nothing_is_reported():
    before = {ONE: backend(), TWO: backend()}
    after = {ONE: backend(got(20)), TWO: backend()}
    assert of_backends(before, after).troubles == ("10.1.0.2 gets nothing",)
    few = {ONE: backend(got(5)), TWO: backend()}
    assert of_backends(before, few).troubles == ()


def test_a_new_backend_that_long_connections_starve_is_reported():
    after = {ONE: backend(got(100), active=40), TWO: backend(got(1), active=1)}
    found = of_backends(after, after)
    assert found.troubles == ("10.1.0.2 starved",)
    assert [each.trouble for each in found.backends] == ["", "starved"]
    even = {ONE: backend(active=40), TWO: backend(active=20)}
    assert of_backends(even, even).troubles == ()
    few = {ONE: backend(active=5), TWO: backend(got(1))}
    assert of_backends(few, few).troubles == ()
    quick = {ONE: backend(got(3), active=40), TWO: backend(got(3))}
    assert of_backends({}, quick).troubles == ()


@pytest.mark.parametrize(
    ("old", "others", "new", "trouble"),
    [
        pytest.param(4, [], Counts(), "new pod 10.1.0.2 idle", id="an even share of 2"),
        pytest.param(3, [], Counts(), "", id="an even share below 2"),
        pytest.param(4, [], got(1), "", id="it had a connection"),
        pytest.param(40, [], Counts(), "new pod 10.1.0.2 idle", id="never one of many"),
    ],
)
def test_a_backend_that_never_had_a_connection_is_reported(old, others, new, trouble):
    after = {ONE: backend(got(old), active=old), TWO: backend(new), SIX: backend()}
    found = of_backends(after, after)
    assert found.troubles == ((trouble,) if trouble else ())
    assert found.backends[1].trouble == ("new pod idle" if trouble else "")


def test_a_new_backend_is_not_called_idle_while_connections_come():
    before = {ONE: backend(got(4), active=4), TWO: backend()}
    after = {ONE: backend(got(5), active=5), TWO: backend()}
    assert of_backends(before, after).troubles == ()


def gone(active, *, removed=True) -> BackendTraffic:
    return backend(got(active), active=active, offered=False, removed=removed)


def test_connections_on_removed_pods_are_reported_with_the_new_ones_that_have_none():
    new, newer = (place(f"10.1.0.{n}") for n in (3, 4))
    after = {ONE: gone(12), TWO: gone(12), new: backend(), newer: backend()}
    assert of_backends(after, after).troubles == (
        "24 of 24 connections on removed pods",
        "new pod 10.1.0.3 idle",
        "new pod 10.1.0.4 idle",
    )
    alone = {ONE: gone(3), TWO: backend()}
    assert of_backends(alone, alone).troubles == (
        "3 of 3 connections on removed pods",
        "new pod 10.1.0.2 idle",
    )


@pytest.mark.parametrize(
    ("old", "others", "troubles"),
    [
        (gone(5), 5, ("5 of 10 connections on removed pods",)),
        (gone(4), 5, ()),
        pytest.param(gone(5, removed=False), 5, (), id="it still serves"),
        pytest.param(gone(0), 0, (), id="no connections at all"),
    ],
)
def test_connections_on_removed_pods_are_reported_if_they_are_at_least_half(old, others, troubles):
    after = {ONE: old, TWO: backend(got(others), active=others)}
    assert of_backends(after, after).troubles == troubles


def test_pods_are_named_where_names_are_known():
    sample = TrafficSample(0, {WEB: ServiceTraffic({}, {ONE: backend(), TWO: backend()})})
    asked = backend(Counts(3, failed=3))
    after = TrafficSample(1, {WEB: ServiceTraffic({}, {ONE: asked, TWO: asked})})
    (found,) = rates(sample, after, {"10.1.0.1": "shop/web-1"})
    assert [each.pod for each in found.backends] == ["shop/web-1", ""]
    assert found.troubles == ("shop/web-1 answers nobody", "10.1.0.2 answers nobody")


def test_a_backend_that_takes_nothing_new_is_not_starved():
    after = {ONE: backend(got(9), active=40), TWO: backend(active=1, offered=False)}
    found = of_backends(after, after)
    assert (found.endpoints, found.troubles) == (1, ())


@pytest.mark.parametrize(
    ("counts", "protocol", "trouble"),
    [
        pytest.param(Counts(3, failed=3), Protocol.TCP, True, id="all fail"),
        pytest.param(Counts(1, original_packets=3), Protocol.TCP, True, id="no packet comes back"),
        pytest.param(Counts(1, original_packets=1), Protocol.TCP, False, id="just asked"),
        pytest.param(got(3, failed=1), Protocol.TCP, False, id="one fails, others are answered"),
        pytest.param(Counts(9, original_packets=90), Protocol.UDP, False, id="UDP one way"),
        pytest.param(Counts(9, failed=9), Protocol.UDP, True, id="UDP that fails"),
    ],
)
def test_a_backend_that_answers_nobody_is_reported(counts, protocol, trouble):
    name = WEB._replace(protocol=protocol)
    found = rate(
        ServiceTraffic({}, {ONE: backend()}), ServiceTraffic({}, {ONE: backend(counts)}), name
    )
    assert found.troubles == (("10.1.0.1 answers nobody",) if trouble else ())


def test_a_backend_that_refuses_every_connection_is_reported():
    refused = ServiceTraffic({}, {ONE: backend(got(3, failed=3))})
    assert rate(ServiceTraffic({}, {}), refused).troubles == ("10.1.0.1 refuses connections",)
    with_an_old_one = ServiceTraffic({}, {ONE: backend(got(3, failed=3, reply_bytes=1))})
    assert rate(ServiceTraffic({}, {}), with_an_old_one).troubles == ()


def test_a_backend_that_hangs_is_reported_if_others_answer():
    before = {ONE: backend(), TWO: backend()}
    asked = Counts(3, original_packets=9, original_bytes=30, reply_packets=6)
    answers = Counts(3, original_packets=9, original_bytes=30, reply_packets=6, reply_bytes=9)
    after = {ONE: backend(asked), TWO: backend(answers)}
    assert of_backends(before, after).troubles == ("10.1.0.1 answers nobody",)
    one_way = {ONE: backend(asked), TWO: backend(asked)}
    assert of_backends(before, one_way).troubles == ()


def test_a_service_without_endpoints_is_reported():
    assert of_backends({}, {}).troubles == ("no endpoint",)
    assert of_backends({}, {}, no_local=True).troubles == ("no local endpoint",)
    draining = {ONE: backend(active=1, offered=False)}
    assert of_backends(draining, draining).troubles == ("no endpoint",)


@pytest.fixture
def maps():
    return memory_maps()


@pytest.fixture
def sync(maps):
    return Sync(maps, quiesce=lambda: None)


def count(maps, name, place, *numbers):
    """Count the same on each of two CPUs."""
    counts = bytes(structs.LbCounts(*numbers))
    maps[name].update(place.to_bytes(4, byteorder), counts * 2)


def seen(maps):
    """The one Service there is."""
    ((_, found),) = TrafficSampler(maps, lambda: 7.0).sample().services.items()
    return found


def test_nothing_loaded_is_nothing_seen(maps):
    assert TrafficSampler(maps, lambda: 7.0).sample().services == {}
    assert TrafficSampler(maps, lambda: 7.0).sample().seconds == 7


def test_the_use_of_a_backup_is_told(maps, sync):
    lent = frontend(choice=backends("10.1.0.1"), backup=BackupUse.ONLY)
    mixed = frontend("fd00::1", backends("fd01::1"), backup=BackupUse.SPILL)
    sync.resync(by_service(lent, mixed))
    found = seen(maps)
    assert found.backups == {BackupUse.ONLY, BackupUse.SPILL}
    assert rate(found, found).troubles == ("spills over to its backup", "on its backup")
    sync.resync(by_service(replace(lent, backup=BackupUse.NONE)))
    assert rate(found, seen(maps)).troubles == ()


def test_frontends_and_backends_with_their_counters(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1", local=True))))
    count(maps, "lb_count_front", 0, 5, 6)
    count(maps, "lb_count_back", 0, 4)
    found = seen(maps)
    assert found.by_type == {CLUSTER_IP: Counts(10, 12)}
    expected = BackendTraffic(
        local=True, terminating=False, offered=True, active=0, counts=Counts(8)
    )
    assert found.backends == {ONE: expected}


def test_a_backend_with_flows_that_is_offered_no_more_is_seen(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1", "10.1.0.2"))))
    for backend in (0, 1):
        record = maps["lb_backends"].lookup(backend.to_bytes(4, byteorder))
        serial = structs.LbBackend.from_buffer_copy(record).serial
        socket = structs.LbSocketKey(cookie=backend, direction=Direction.LB_DIR_REPLY)
        value = structs.LbSocket(backend=backend, serial=serial)
        maps["lb_sockets"].update(bytes(socket), bytes(value))
    one = frontend(choice=backends("10.1.0.1"))
    serving = replace(one, serving=backends("10.1.0.2").backends)
    for wanted, removed in ((serving, False), (one, True)):
        sync.apply(by_service(wanted))
        found = seen(maps).backends
        assert {at: (each.offered, each.removed) for at, each in found.items()} == {
            ONE: (True, False),
            TWO: (False, removed),
        }


@pytest.mark.parametrize(
    ("wanted", "no_local"),
    [
        pytest.param(frontend(choice=backends("10.1.0.1")), False, id="cluster"),
        pytest.param(frontend(internal_policy=TrafficPolicy.LOCAL), True, id="internal local"),
        pytest.param(frontend(), False, id="no endpoint anywhere"),
        pytest.param(
            frontend(choice=backends("10.1.0.1"), others=DROP, **EXTERNAL), True, id="external"
        ),
        pytest.param(
            frontend(choice=backends("10.1.0.1", local=True), **EXTERNAL), False, id="one is here"
        ),
    ],
)
def test_missing_local_endpoints_are_reported(maps, sync, wanted, no_local):
    sync.resync(by_service(replace(wanted, service=named("web"))))
    assert seen(maps).no_local is no_local
