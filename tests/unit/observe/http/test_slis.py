# SPDX-License-Identifier: Apache-2.0
"""/metrics/slis, and the health check that it reports."""

from prometheus_client.parser import text_string_to_metric_families

from ebpflb.observe.http.debug_pages import slis_routes

PING = {"name": "ping", "type": "healthz"}


def samples(routes):
    answer = routes["/metrics/slis"]()
    assert answer.content_type.startswith("text/plain; version=")
    families = text_string_to_metric_families(answer.body.decode())
    return [(each.name, each.labels, each.value) for family in families for each in family.samples]


def test_nothing_was_checked_yet():
    assert samples(slis_routes(lambda: 7.0)) == [("process_start_time_seconds", {}, 7.0)]


def test_each_check_counts():
    routes = slis_routes(lambda: 7.0)
    for _ in range(2):
        assert routes["/healthz"]().body == b"ok"
    assert samples(routes) == [
        ("kubernetes_healthcheck", PING, 1.0),
        ("kubernetes_healthchecks_total", {**PING, "status": "success"}, 2.0),
        ("process_start_time_seconds", {}, 7.0),
    ]


def test_a_single_check_is_asked_without_being_counted():
    routes = slis_routes(lambda: 7.0)
    assert routes["/healthz/ping"]().body == b"ok"
    assert len(samples(routes)) == 1
