# SPDX-License-Identifier: Apache-2.0
"""From flow records to the histograms on the page."""

from itertools import pairwise

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from ebpflb.dataplane.flows.records import StoredFlow
from ebpflb.dataplane.layout.enums import FlowEnd, FlowEvent, FlowPath
from ebpflb.model.address import Protocol
from ebpflb.model.flow import flow_id
from ebpflb.observe.metrics import latency as counting
from ebpflb.observe.metrics.latency import BOUNDS, ServiceLatency
from ebpflb.observe.metrics.page import Metrics
from ebpflb.observe.metrics.service_readings import PortLabels, Reading
from ebpflb.observe.metrics.text_format import OPENMETRICS, PLAIN
from tests.builders import port_name
from tests.unit.agent.flows import record

START, END = FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END
SECOND = 1_000_000_000
PORT, OTHER = port_name(), port_name(service="other")
LABELS = {each: PortLabels(each.namespace, each.service, "http", "TCP") for each in (PORT, OTHER)}
CONNECT, RTT = "ebpflb_service_connect_seconds", "ebpflb_service_rtt_seconds"


def opened(rtt: int, after: int = 0) -> bytes:
    """`rtt`: microseconds. `after`: how long the clock of the programs says it took, in ns."""
    return record(START, time=5 * SECOND + after, started=5 * SECOND, rtt=rtt)


def counted(*records: bytes, port=PORT) -> ServiceLatency:
    latency = ServiceLatency()
    for number, each in enumerate(records):
        latency.count(number, StoredFlow(each, 95 * SECOND, port))
    return latency


def text(latency, wanted=PLAIN):
    metrics = Metrics(("IPv4",), lambda: Reading(latency=latency.readings(LABELS)))
    return metrics.page(wanted).body.decode()


def page(latency, wanted=PLAIN):
    """The samples of the two histograms."""
    families = (read_openmetrics if wanted is OPENMETRICS else read_text)(text(latency, wanted))
    return {each.name: each.samples for each in families if each.name in (CONNECT, RTT)}


def up_to(samples, bound):
    (found,) = (each.value for each in samples if each.labels.get("le") == bound)
    return found


def test_connects_and_round_trips_are_counted_by_service_port():
    found = page(counted(opened(900), opened(40_000), record(rtt=12_000)))
    bounds = "0.0005", "0.001", "0.05", "+Inf"
    assert [up_to(found[CONNECT], bound) for bound in bounds] == [0, 1, 2, 2]
    assert [up_to(found[RTT], bound) for bound in ("0.01", "0.015")] == [0, 1]
    labels = {"namespace": "default", "service": "web", "port": "http", "protocol": "TCP"}
    sums = {each.name: each.value for each in found[CONNECT] if each.labels == labels}
    assert sums == {f"{CONNECT}_count": 2, f"{CONNECT}_sum": pytest.approx(0.0409)}


def test_a_bound_belongs_to_its_bucket_and_what_is_above_all_is_counted():
    found = page(counted(opened(50_000), opened(20_000_000)))
    bounds = "0.03", "0.05", "10.0", "+Inf"
    assert [up_to(found[CONNECT], bound) for bound in bounds] == [0, 1, 1, 2]


def test_a_repeated_syn_counts_with_the_time_that_was_waited():
    (reading,) = counted(opened(300, after=1_034 * 1_000_000)).readings(LABELS)
    assert reading.sum == pytest.approx(1.024)


def test_ticks_of_the_clock_do_not_blur_what_is_measured_in_microseconds():
    (reading,) = counted(opened(300, after=10_000_000)).readings(LABELS)
    assert reading.sum == pytest.approx(0.0003)


@pytest.mark.parametrize(
    "unmeasured",
    [
        record(path=FlowPath.LB_PATH_TC, rtt=0),
        record(START, path=FlowPath.LB_PATH_TC, rtt=0),
        record(START, proto=Protocol.UDP, rtt=0),
        record(end=FlowEnd.LB_END_NO_ANSWER, rtt=0),
        record(FlowEvent.LB_FLOW_REFUSED),
    ],
)
def test_records_without_a_measured_time_are_left_out(unmeasured):
    assert counted(unmeasured).readings(LABELS) == []


def test_connections_to_no_known_service_are_left_out():
    assert counted(opened(900), port=None).readings(LABELS) == []


def test_nothing_is_on_the_page_without_connections():
    assert page(counted()) == {}


def test_a_removed_service_has_no_series_and_begins_anew():
    latency = counted(opened(900))
    assert latency.readings({OTHER: LABELS[OTHER]}) == []
    assert latency.readings(LABELS) == []


def test_ports_beyond_all_that_there_may_be_wait_for_room(monkeypatch):
    monkeypatch.setattr(counting, "_MOST_HISTOGRAMS", 1)
    found = counted(opened(900), record(), opened(900))
    assert [(each.event, sum(each.counts)) for each in found.readings(LABELS)] == [("start", 2)]


def test_text_has_no_exemplars():
    lines = text(counted(opened(900))).splitlines()
    assert f"{CONNECT}_bucket" in "".join(lines)
    assert not [line for line in lines if "#" in line[1:]]


def test_each_bucket_shows_the_latest_of_its_flows():
    latency = counted(opened(800), opened(40_000), opened(900))
    shown = {
        each.labels["le"]: each.exemplar
        for each in page(latency, OPENMETRICS)[CONNECT]
        if each.exemplar
    }
    assert {bound: (each.labels, each.value) for bound, each in shown.items()} == {
        "0.001": ({"flow_id": flow_id(100 * SECOND, 2)}, 0.0009),
        "0.05": ({"flow_id": flow_id(100 * SECOND, 1)}, 0.04),
    }
    assert {float(each.timestamp) for each in shown.values()} == {100.0}


def test_the_buckets_resolve_what_most_clusters_have():
    ratios = [after / before for before, after in pairwise(BOUNDS)]
    assert (BOUNDS[0], BOUNDS[-1]) == (0.00025, 10)
    assert max(ratios) <= 2.5
    close = [each for bound, each in zip(BOUNDS, ratios, strict=False) if 0.001 <= bound < 0.1]
    assert max(close) < 1.7
