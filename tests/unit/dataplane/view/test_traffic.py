# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from sys import byteorder

import pytest

from ebpflb.dataplane.layout import structs
from ebpflb.dataplane.layout.enums import Direction
from ebpflb.dataplane.services.sync import Sync
from ebpflb.dataplane.view.rates import BackendKey, BackendTraffic, sample_traffic
from ebpflb.model.flow import Counts
from ebpflb.model.plan import Choice, FrontendType, IfEmpty
from ebpflb.model.service import TrafficPolicy
from tests.memory_maps import memory_maps
from tests.unit.dataplane.desired import backends, by_service, frontend, key, named

DROP = Choice((), IfEmpty.DROP)
EXTERNAL = {"type": FrontendType.EXTERNAL_IP, "external_policy": TrafficPolicy.LOCAL}


@pytest.fixture
def maps():
    return memory_maps()


@pytest.fixture
def sync(maps):
    return Sync(maps, quiesce=lambda: None)


def count(maps, name, place, *numbers):
    """Count the same on each of two CPUs."""
    counts = bytes(structs.Counts(*numbers))
    maps[name].update(place.to_bytes(4, byteorder), counts * 2)


def seen(maps):
    """The one Service there is."""
    ((_, found),) = sample_traffic(maps, lambda: 7.0).services.items()
    return found


def test_nothing_loaded_is_nothing_seen(maps):
    assert sample_traffic(maps, lambda: 7.0).services == {}
    assert sample_traffic(maps, lambda: 7.0).seconds == 7


def test_frontends_and_backends_with_their_counters(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1", local=True))))
    count(maps, "lb_count_front", 0, 5, 6)
    count(maps, "lb_count_back", 0, 4)
    found = seen(maps)
    assert found.frontends == {key("10.96.0.1"): Counts(10, 12)}
    expected = BackendTraffic(
        local=True, terminating=False, offered=True, active=0, counts=Counts(8)
    )
    assert found.backends == {BackendKey("10.1.0.1", 8080): expected}


def test_a_backend_with_flows_that_is_offered_no_more_is_seen(maps, sync):
    sync.resync(by_service(frontend(choice=backends("10.1.0.1", "10.1.0.2"))))
    for backend in (0, 1):
        record = maps["lb_backends"].lookup(backend.to_bytes(4, byteorder))
        generation = structs.Backend.from_buffer_copy(record).generation
        socket = structs.SocketKey(cookie=backend, direction=Direction.LB_DIR_REPLY)
        value = structs.Socket(backend=backend, generation=generation)
        maps["lb_sockets"].update(bytes(socket), bytes(value))
    sync.apply(by_service(frontend(choice=backends("10.1.0.1"))))
    found = seen(maps).backends
    assert {place.address: each.offered for place, each in found.items()} == {
        "10.1.0.1": True,
        "10.1.0.2": False,
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
def test_missing_local_endpoints_are_told(maps, sync, wanted, no_local):
    sync.resync(by_service(replace(wanted, service=named("web"))))
    assert seen(maps).no_local is no_local
