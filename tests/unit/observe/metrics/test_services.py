# SPDX-License-Identifier: Apache-2.0
"""The complete page: names, types, labels and values."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebpflb.observe.metrics.page import Metrics
from ebpflb.observe.metrics.services import MetricFamily, exposition, in_pieces, label_text
from ebpflb.observe.metrics.text_format import PLAIN
from tests.unit.observe.metrics.reading import READING

PORT = {"namespace", "service", "port", "protocol"}
# Name without ebpflb_, type and labels, as docs/monitoring.md and the dashboards have them.
NAMES = {
    **{
        f"service_{name}": ("counter", PORT | {"type"})
        for name in ("connections", "refused", "dropped", "failed", "retransmits", "retried")
    },
    "service_bytes": ("counter", PORT | {"type", "direction"}),
    "service_packets": ("counter", PORT | {"type", "direction"}),
    "service_active_connections": ("gauge", PORT),
    "service_endpoints": ("gauge", PORT | {"state"}),
    "service_cross_node_connections": ("counter", PORT),
    "service_cross_zone_connections": ("counter", PORT),
    "service_cross_zone_bytes": ("counter", PORT),
    "service_imbalance_ratio": ("gauge", PORT),
    "service_oldest_connection_seconds": ("gauge", PORT),
    "service_unusable_endpoints": ("gauge", PORT),
    "service_removed_endpoint_connections": ("gauge", PORT),
    "service_full_endpoints": ("gauge", PORT),
    "endpoint_first_connection_seconds": ("histogram", {"le"}),
    "backend_connections": ("counter", PORT | {"backend", "node", "zone"}),
    "backend_failed": ("counter", PORT | {"backend", "node", "zone"}),
    "backend_bytes": ("counter", PORT | {"backend", "node", "zone"}),
    "backend_active_connections": ("gauge", PORT | {"backend", "node", "zone"}),
    "dropped": ("counter", {"reason", "interface"}),
    "flow_records": ("counter", {"event"}),
    "flow_records_lost": ("counter", {"reason"}),
    "flow_duration_seconds": ("histogram", set()),
    "flow_rtt_seconds": ("histogram", {"path", "le"}),
    "flow_bytes": ("histogram", set()),
}


@pytest.fixture
def page() -> str:
    metrics = Metrics(("IPv4", "IPv6"), lambda: READING)
    metrics.first_connection(1.5)
    return metrics.page().body.decode()


def samples(page: str, service: str = "web") -> dict[tuple[str, ...], float]:
    """(name, labels besides those of the Service port) -> value."""
    return {
        (sample.name, *(value for name, value in sample.labels.items() if name not in PORT)): value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
        for value in (sample.value,)
        if sample.labels.get("service", service) == service
    }


def test_names_types_and_labels_are_those_that_dashboards_use(page):
    found = {}
    for family in text_string_to_metric_families(page):
        labels = {name for sample in family.samples for name in sample.labels}
        found[family.name.removeprefix("ebpflb_")] = (family.type, labels)
    assert {name: found.get(name) for name in NAMES} == NAMES


def test_values_are_those_of_the_reading(page):
    found = samples(page)
    plain = "connections", "refused", "dropped", "failed", "retransmits"
    assert [found[f"ebpflb_service_{name}_total", "ClusterIP"] for name in plain] == [1, 2, 3, 4, 5]
    for name, original, reply in (("packets", 6, 8), ("bytes", 7, 9)):
        metric = f"ebpflb_service_{name}_total"
        assert found[metric, "ClusterIP", "original"] == original
        assert found[metric, "ClusterIP", "reply"] == reply
    states = [found["ebpflb_service_endpoints", s] for s in ("local", "remote", "terminating")]
    assert states == [1, 2, 3]
    assert found["ebpflb_service_active_connections",] == 4
    assert found["ebpflb_service_cross_node_connections_total",] == 5
    assert found["ebpflb_service_cross_zone_connections_total",] == 6
    assert found["ebpflb_service_cross_zone_bytes_total",] == 10
    assert found["ebpflb_service_oldest_connection_seconds",] == 7.5
    assert found["ebpflb_service_imbalance_ratio",] == 1.25
    assert found["ebpflb_service_unusable_endpoints",] == 8
    assert found["ebpflb_service_removed_endpoint_connections",] == 9
    assert found["ebpflb_service_full_endpoints",] == 11


def test_values_of_backends_drops_and_flows(page):
    found, where = samples(page), ("10.1.0.1:80", "node-b", "z1")
    assert found["ebpflb_backend_connections_total", *where] == 1
    assert found["ebpflb_backend_failed_total", *where] == 4
    assert found["ebpflb_backend_bytes_total", *where] == 16
    assert found["ebpflb_backend_active_connections", *where] == 4
    assert found["ebpflb_dropped_total", "eth0", "no_route"] == 5
    assert found["ebpflb_flow_records_total", "refused"] == 3
    assert found["ebpflb_flow_records_total", "start"] == 0
    assert found["ebpflb_flow_records_lost_total", "rate_limit"] == 2
    assert found["ebpflb_flow_rtt_seconds_bucket", "+Inf", "tc"] == 3
    assert found["ebpflb_flow_rtt_seconds_sum", "tc"] == 4.5
    assert found["ebpflb_endpoint_first_connection_seconds_count",] == 1


def test_the_text_is_what_prometheus_reads():
    labels = label_text(("one", "two"), ('a "b"\\c\nd', ""))
    samples = [(labels, 2), ('one="b"', 0.5)]
    page = "".join(exposition([MetricFamily("x_total", "counter", "Some.", samples)], PLAIN))
    (family,) = text_string_to_metric_families(page)
    assert (family.name, family.type, family.documentation) == ("x", "counter", "Some.")
    assert [(each.labels, each.value) for each in family.samples] == [
        ({"one": 'a "b"\\c\nd', "two": ""}, 2.0),
        ({"one": "b"}, 0.5),
    ]


def test_a_metric_without_series_says_what_it_is():
    (page,) = exposition([MetricFamily("x", "gauge", "Some.", [])], PLAIN)
    assert page == "# HELP x Some.\n# TYPE x gauge\n"


def test_many_series_are_all_in_the_text():
    samples = [(f'one="{number}"', number) for number in range(1000)]
    lines = exposition([MetricFamily("x", "gauge", "Some.", samples)], PLAIN)
    page = b"".join(in_pieces(lines)).decode()
    (family,) = text_string_to_metric_families(page)
    assert [each.value for each in family.samples] == [value for _, value in samples]
