# SPDX-License-Identifier: Apache-2.0
from prometheus_client.parser import text_string_to_metric_families

from ebpflb.observe.metrics.exposition import Family, exposition, label_text


def test_the_text_is_what_prometheus_reads():
    labels = label_text(("one", "two"), ('a "b"\\c\nd', ""))
    page = exposition([Family("x_total", "counter", "Some.", [(labels, 2), ('one="b"', 0.5)])])
    (family,) = text_string_to_metric_families(page.decode())
    assert (family.name, family.type, family.documentation) == ("x", "counter", "Some.")
    assert [(each.labels, each.value) for each in family.samples] == [
        ({"one": 'a "b"\\c\nd', "two": ""}, 2.0),
        ({"one": "b"}, 0.5),
    ]


def test_a_metric_without_series_says_what_it_is():
    assert exposition([Family("x", "gauge", "Some.", [])]) == b"# HELP x Some.\n# TYPE x gauge\n"
