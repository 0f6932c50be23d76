# SPDX-License-Identifier: Apache-2.0

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ebpflb import __version__
from ebpflb.errors import MapError
from ebpflb.model.address import Family
from ebpflb.observe.metrics.page import Metrics, SharedPage, Totals
from ebpflb.observe.metrics.service_readings import Reading
from ebpflb.web.answers import Answer

DOCUMENT = Path(__file__).parents[4] / "docs/monitoring.md"
PREFIX = "kubeproxy_sync_proxy_rules_"
FAMILIES = ("IPv4", "IPv6")
# Name, type and labels besides ip_family: semantics of kube-proxy's metrics page.
NEUTRAL = {
    "kubeproxy_sync_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_sync_full_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_sync_partial_proxy_rules_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_network_programming_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_sync_proxy_rules_last_timestamp_seconds": ("gauge", {"ip_family"}),
    "kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": ("gauge", {"ip_family"}),
    "kubeproxy_sync_proxy_rules_endpoint_changes_pending": ("gauge", set()),
    "kubeproxy_sync_proxy_rules_service_changes_pending": ("gauge", set()),
    "kubeproxy_sync_proxy_rules_endpoint_changes_total": ("counter", set()),
    "kubeproxy_sync_proxy_rules_service_changes_total": ("counter", set()),
    "kubeproxy_sync_proxy_rules_no_local_endpoints_total": (
        "gauge",
        {"traffic_policy", "ip_family"},
    ),
    "kubeproxy_conntrack_reconciler_sync_duration_seconds": ("histogram", {"ip_family"}),
    "kubeproxy_conntrack_reconciler_deleted_entries_total": ("counter", {"ip_family"}),
    "kubeproxy_proxy_healthz_total": ("counter", {"code"}),
    "kubeproxy_proxy_livez_total": ("counter", {"code"}),
}
SECONDS = 60


@pytest.fixture
def metrics():
    return Metrics(FAMILIES)


def samples(metrics):
    page = metrics.page().body.decode()
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_a_sync_is_measured_for_both_families(metrics):
    metrics.synced(0.5, full=True, complete=True)
    metrics.synced(0.25, full=False, complete=True)
    found = samples(metrics)
    for family in FAMILIES:
        assert found[f"{PREFIX}duration_seconds_sum", family] == 0.75
        assert found["kubeproxy_sync_full_proxy_rules_duration_seconds_sum", family] == 0.5
        assert found["kubeproxy_sync_partial_proxy_rules_duration_seconds_sum", family] == 0.25
        assert found[f"{PREFIX}last_timestamp_seconds", family] > 1e9
    assert found["ebpflb_sync_failures_total",] == 0


def test_the_buckets_are_kube_proxys(metrics):
    metrics.synced(1, full=True, complete=True)
    name = f"{PREFIX}duration_seconds_bucket"
    bounds = sorted(
        float(labels[1] if labels[0] == "IPv4" else labels[0])
        for (sample, *labels) in samples(metrics)
        if sample == name and "IPv4" in labels
    )
    assert bounds[:2] == [0.001, 0.002]
    assert bounds[-2:] == [16.384, float("inf")]
    assert len(bounds) == 16


def test_an_incomplete_sync_is_a_failure_and_no_success(metrics):
    metrics.synced(1, full=True, complete=False)
    found = samples(metrics)
    assert found["ebpflb_sync_failures_total",] == 1
    assert (f"{PREFIX}last_timestamp_seconds", "IPv4") not in found
    assert found[f"{PREFIX}duration_seconds_count", "IPv4"] == 1


def test_a_sync_that_fails_is_measured_and_counted_once(metrics):
    metrics.tried(0.5, full=False)
    metrics.failed()
    found = samples(metrics)
    assert found[f"{PREFIX}duration_seconds_sum", "IPv6"] == 0.5
    assert found["kubeproxy_sync_partial_proxy_rules_duration_seconds_sum", "IPv6"] == 0.5
    assert found["ebpflb_sync_failures_total",] == 1
    assert (f"{PREFIX}last_timestamp_seconds", "IPv4") not in found


def test_changes_that_make_no_difference_do_not_look_like_a_sync_that_hangs(metrics):
    metrics.changed(services=1, endpoints=1)
    metrics.idle()
    found = samples(metrics)
    assert found[f"{PREFIX}service_changes_pending",] == 0
    last, queued = f"{PREFIX}last_timestamp_seconds", f"{PREFIX}last_queued_timestamp_seconds"
    assert found[last, "IPv4"] >= found[queued, "IPv4"]
    assert (f"{PREFIX}duration_seconds_count", "IPv4") not in found


def test_changes_are_pending_until_a_sync_takes_them(metrics):
    metrics.changed(services=2, endpoints=3)
    found = samples(metrics)
    assert found[f"{PREFIX}service_changes_pending",] == 4
    assert found[f"{PREFIX}endpoint_changes_pending",] == 3
    assert found[f"{PREFIX}last_queued_timestamp_seconds", "IPv6"] > 1e9
    metrics.synced(1, full=False, complete=True)
    found = samples(metrics)
    assert found[f"{PREFIX}service_changes_pending",] == 0
    assert found[f"{PREFIX}service_changes_total",] == 4
    assert found[f"{PREFIX}endpoint_changes_total",] == 3


def test_what_the_agent_knows_is_replaced_as_a_whole(metrics):
    metrics.show(
        Totals(
            services=7,
            services_refused=1,
            attach_errors=2,
            source_errors=("/m/a.yaml", "/m/b.yaml"),
            no_local={("external", "IPv6"): 3},
        )
    )
    found = samples(metrics)
    assert found["ebpflb_services",] == 7
    assert found["ebpflb_services_refused",] == 1
    assert found["ebpflb_attach_errors",] == 2
    assert found["ebpflb_source_errors", "/m/a.yaml"] == 1
    assert found[f"{PREFIX}no_local_endpoints_total", "IPv6", "external"] == 3
    metrics.show(Totals(source_errors=("/m/b.yaml",)))
    found = samples(metrics)
    assert ("ebpflb_source_errors", "/m/a.yaml") not in found
    assert found[f"{PREFIX}no_local_endpoints_total", "IPv6", "external"] == 0


def test_the_kernel_is_read_at_each_scrape():
    readings = iter([Reading({"lb_slots": (1, 8)}, {("no_route", "eth0"): 5}), Reading()])
    metrics = Metrics(FAMILIES, lambda: next(readings))
    found = samples(metrics)
    assert found["ebpflb_map_entries", "lb_slots"] == 1
    assert found["ebpflb_map_max_entries", "lb_slots"] == 8
    assert found["ebpflb_dropped_total", "eth0", "no_route"] == 5
    assert ("ebpflb_map_entries", "lb_slots") not in samples(metrics)


def test_maps_that_cannot_be_read_leave_the_rest_of_the_page(caplog):
    def fail():
        raise MapError("lb_slots", "lookup", 5)

    found = samples(Metrics(FAMILIES, fail))
    assert found["ebpflb_services",] == 0
    assert "map lb_slots: lookup failed" in caplog.text


def test_answers_expiry_version_and_process(metrics):
    metrics.answered("/healthz", 503)
    metrics.answered("/livez", 200)
    metrics.expired(4)
    found = samples(metrics)
    assert found["kubeproxy_proxy_healthz_total", "503"] == 1
    assert found["kubeproxy_proxy_livez_total", "200"] == 1
    assert found["ebpflb_conntrack_expired_total",] == 4
    assert found["ebpflb_build_info", __version__] == 1
    assert found["process_resident_memory_bytes",] > 0
    assert not [name for name, *_ in found if name.endswith("_created")]


def test_the_names_types_and_labels_are_kube_proxys(metrics):
    metrics.changed(services=1, endpoints=1)
    metrics.synced(1, full=True, complete=True)
    metrics.synced(1, full=False, complete=True)
    metrics.programmed([(Family.IPV4, 1.0)])
    metrics.reconciled(0.01, {Family.IPV4: 1})
    metrics.show(Totals())
    for path in ("/healthz", "/livez"):
        metrics.answered(path, 200)
    found: dict[str, tuple[str, set[str]]] = {}
    for line in metrics.page().body.decode().splitlines():
        if line.startswith("# TYPE kubeproxy_"):
            _, _, name, kind = line.split()
            found[name] = (kind, set())
        elif line.startswith("kubeproxy_"):
            found[name][1].update(re.findall(r'(\w+)="', line), ())
    for _, labels in found.values():
        labels.discard("le")
    assert found == NEUTRAL


def test_network_programming_has_kube_proxys_buckets(metrics):
    metrics.programmed([(Family.IPV6, 0.1)])
    page = metrics.page().body.decode()
    name = "kubeproxy_network_programming_duration_seconds_bucket"
    bounds = re.findall(name + r'{ip_family="IPv6",le="([^"]+)"}', page)
    assert bounds[:4] == ["0.25", "0.5", "1.0", "2.0"]
    assert bounds[60:64] == ["59.0", "60.0", "65.0", "70.0"]
    assert bounds[72:] == [
        "115.0",
        "120.0",
        "150.0",
        "180.0",
        "210.0",
        "240.0",
        "270.0",
        "300.0",
        "+Inf",
    ]


def test_every_metric_says_what_it_is(metrics):
    families = text_string_to_metric_families(metrics.page().body.decode())
    silent = [each.name for each in families if not each.documentation.endswith(".")]
    own = [name for name in silent if name.startswith(("ebpflb", "kubeproxy"))]
    assert not own


class Pages:
    """Makes pages that are all different."""

    def __init__(self) -> None:
        self.made = 0
        self.now = 100.0

    def __call__(self) -> Answer:
        self.made += 1
        return Answer(str(self.made).encode())


def test_a_page_is_shared_for_a_second():
    pages = Pages()
    page = SharedPage(pages, lambda: pages.now)
    assert page() is page()
    pages.now += 0.9
    assert page().body == b"1"
    pages.now += 0.1
    assert page().body == b"2"


def test_a_page_that_cannot_be_made_does_not_block_the_next():
    broken = [ValueError("broken")]

    def make() -> Answer:
        if broken:
            raise broken.pop()
        return Answer(b"page")

    page = SharedPage(make)
    with pytest.raises(ValueError, match="broken"):
        page()
    assert page().body == b"page"


def test_every_metric_of_the_agent_is_documented():
    text = DOCUMENT.read_text()
    named = [
        re.sub("^(ebpflb|kubeproxy)_", "", family.name) + "_total" * (family.type == "counter")
        for family in Metrics(FAMILIES).registry.collect()
        if family.name.startswith(("ebpflb_", "kubeproxy_"))
    ]
    assert [name for name in named if f"`{name}`" not in text] == []
