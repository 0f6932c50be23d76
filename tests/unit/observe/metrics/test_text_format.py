# SPDX-License-Identifier: Apache-2.0
"""The page as OpenMetrics has what the page as text has."""

import re

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from ebpflb.errors import MapError
from ebpflb.observe.metrics.page import Metrics, Totals
from ebpflb.observe.metrics.text_format import OPENMETRICS, PLAIN
from tests.unit.observe.metrics.reading import READING

TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


@pytest.fixture
def metrics():
    made = Metrics(("IPv4", "IPv6"), lambda: READING)
    made.first_connection(1.5)
    made.synced(0.5, full=True, complete=True)
    made.show(Totals(services=7, no_local={("external", "IPv6"): 3}))
    return made


def steady(families):
    """Without what differs from page to page: time, memory, and what Python counts."""
    return {
        family.name: (
            family.type,
            family.documentation,
            [(sample.name, sample.labels, sample.value) for sample in family.samples],
        )
        for family in families
        if not family.name.startswith(("process_", "python_"))
    }


def test_both_formats_have_the_same_series(metrics):
    text, openmetrics = metrics.page(), metrics.page(OPENMETRICS)
    assert openmetrics.content_type == TYPE
    found = steady(read_openmetrics(openmetrics.body.decode()))
    assert found == steady(read_text(text.body.decode()))
    assert len(found) > 50


def test_both_write_labels_alike_so_that_series_go_on_when_the_format_changes(metrics):
    bounds = [
        set(re.findall(r'le="([^"]+)"', metrics.page(wanted).body.decode()))
        for wanted in (PLAIN, OPENMETRICS)
    ]
    assert bounds[0] == bounds[1]


def test_only_openmetrics_ends_once(metrics):
    assert metrics.page().body.count(b"# EOF") == 0
    page = metrics.page(OPENMETRICS).body
    assert page.endswith(b"\n# EOF\n")
    assert page.count(b"# EOF") == 1


def test_a_page_without_maps_is_whole():
    def fail():
        raise MapError("lb_slots", "lookup", 5)

    page = Metrics(("IPv4",), fail).page(OPENMETRICS).body.decode()
    assert "ebpflb_services" in {family.name for family in read_openmetrics(page)}
