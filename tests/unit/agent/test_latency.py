# SPDX-License-Identifier: Apache-2.0
"""Network programming latency: which changes count, and when they are in force."""

import time

import pytest

from ebpflb.errors import LoadError
from ebpflb.model.address import Family
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.model.service import ServiceName
from ebpflb.observe.metrics.programming_latency import Delay, ProgrammingLatency
from ebpflb.source.interface import SourceEvent, Trigger
from tests.builders import endpoint, endpoint_slice, service
from tests.unit.agent.node import MAP_ERROR, Clock

WEB, SHOP = ServiceName("default", "web"), ServiceName("default", "shop")
STARTED = 100.0
NAME = "kubeproxy_network_programming_duration_seconds"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def latency(clock: Clock) -> ProgrammingLatency:
    assert clock() == STARTED
    return ProgrammingLatency(clock)


def trigger(time: float | None, name: ServiceName = WEB, family: Family = Family.IPV4) -> Trigger:
    return Trigger(name, family, time)


def test_a_change_takes_from_its_trigger_until_it_is_in_force(
    latency: ProgrammingLatency, clock: Clock
):
    latency.note([trigger(101.0), trigger(102.0), trigger(103.0, SHOP, Family.IPV6)])
    clock.now = 110.0
    assert sorted(latency.take()) == [
        Delay(Family.IPV4, 8.0),
        Delay(Family.IPV4, 9.0),
        Delay(Family.IPV6, 7.0),
    ]


def test_a_change_is_taken_once(latency: ProgrammingLatency):
    latency.note([trigger(101.0)])
    assert len(list(latency.take())) == 1
    assert list(latency.take()) == []


@pytest.mark.parametrize(("triggered", "counts"), [(99.9, 0), (STARTED, 0), (100.1, 1)])
def test_what_happened_before_the_start_does_not_count(
    latency: ProgrammingLatency, triggered: float, counts: int
):
    latency.note([trigger(triggered)])
    assert len(list(latency.take())) == counts


def test_a_slice_that_goes_takes_back_its_services_changes_of_its_family(
    latency: ProgrammingLatency,
):
    latency.note([trigger(101.0), trigger(101.0, SHOP), trigger(101.0, WEB, Family.IPV6)])
    latency.note([trigger(None), trigger(None, ServiceName("default", "unknown"))])
    assert sorted(each.family for each in latency.take()) == [Family.IPV4, Family.IPV6]


def test_a_change_after_a_slice_went_counts(latency: ProgrammingLatency):
    latency.note([trigger(101.0), trigger(None), trigger(102.0)])
    assert len(list(latency.take())) == 1


def test_a_failed_sync_forgets_what_was_noted(latency: ProgrammingLatency):
    latency.note([trigger(101.0)])
    latency.forget()
    assert list(latency.take()) == []


def moved(bench, *upserts: ApiObject) -> None:
    """Say what endpoints changed just now."""
    bench.agent.tell(SourceEvent(upserts, (), {}, False, triggers=(trigger(time.time()),)))


def counted(bench) -> float:
    """How many changes the metric knows."""
    value = bench.metrics.registry.get_sample_value(f"{NAME}_count", {"ip_family": "IPv4"})
    return float(value or 0)


@pytest.fixture
def served(bench):
    """An agent that serves default/web."""
    bench.say(service("web"), endpoint_slice("web-1", endpoint()))
    bench.turn()
    return bench


def test_the_metric_counts_a_change_that_was_written(served):
    moved(served, endpoint_slice("web-1", endpoint("10.1.0.2")))
    assert served.turn() == ["apply default/web"]
    assert counted(served) == 1
    seconds = served.metrics.registry.get_sample_value(f"{NAME}_sum", {"ip_family": "IPv4"})
    assert 0 <= seconds < 60


def test_the_metric_counts_a_change_that_makes_no_difference_when_it_comes(served):
    moved(served, endpoint_slice("late-1", endpoint(), service="late"))
    assert served.turn() == []
    assert counted(served) == 1


def test_the_metric_does_not_count_a_change_whose_write_failed(served):
    served.node.failures["apply default/web"] = [MAP_ERROR]
    moved(served, endpoint_slice("web-1", endpoint("10.1.0.2")))
    served.turn()
    assert "resync" in served.turn(1)
    assert counted(served) == 0


def test_the_metric_does_not_count_changes_until_everything_fits(make_bench):
    bench = make_bench({"lb_slots": 2})
    bench.node.failures["grow"] = [LoadError("no memory")]
    bench.say(service("web"))
    bench.turn()
    pods = [endpoint(f"10.1.0.{last}") for last in range(1, 5)]
    moved(bench, endpoint_slice("web-1", *pods))
    assert bench.turn() == ["apply default/web", "grow"]
    assert bench.turn(1) == ["resync", "grow"]
    assert bench.report()["in_sync"] is True
    assert counted(bench) == 0
