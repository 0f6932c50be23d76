# SPDX-License-Identifier: Apache-2.0
"""Grafana's dashboards: where Grafana finds them, and that each panel is understandable."""

import json
import re
from itertools import combinations

import pytest

from tests.chart.harness.dashboards import (
    Dashboard,
    dashboards,
    replaced,
    unit_of,
    values_asked_for,
)
from tests.chart.harness.exposed import OF_TARGETS, exposed, labels_of, metrics_of
from tests.chart.harness.rendering import EVERYTHING, Object, of_kind, render, template

ALL = dashboards()
# Units of Grafana; it shows an unknown one as text after the number.
UNITS = {"Bps", "bytes", "cps", "none", "percentunit", "pps", "s", "short"}
KINDS = {"bargauge", "heatmap", "stat", "table", "timeseries"}
# Two clusters may have the same.
OF_ONE_CLUSTER = {"node", "instance", "namespace", "service", "backend", "file"}
LEGEND = re.compile(r"\{\{(\w+)\}\}")

each_dashboard = pytest.mark.parametrize("dashboard", ALL, ids=lambda each: each.path.stem)


def config_maps(values: Object) -> list[Object]:
    found = of_kind(render(values), "ConfigMap")
    return [each for each in found if "-dashboard-" in each["metadata"]["name"]]


def test_each_dashboard_is_a_config_map_that_the_sidecar_finds() -> None:
    found = config_maps(EVERYTHING)
    assert len(found) == len(ALL) == 4
    for each in found:
        assert each["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert each["metadata"]["annotations"] == {"grafana_folder": "Network"}
        assert each["metadata"]["namespace"] == "kube-system"
        ((name, text),) = each["data"].items()
        (same,) = [item for item in ALL if name == f"ebpflb-{item.path.name}"]
        assert json.loads(text) == same.json


def test_label_and_namespace_are_those_of_the_values() -> None:
    chosen = {"enabled": True, "labels": {"dashboards": "yes"}, "namespace": "grafana"}
    for each in config_maps({"metrics": {"enabled": True, "dashboards": chosen}}):
        assert each["metadata"]["labels"]["dashboards"] == "yes"
        assert each["metadata"]["namespace"] == "grafana"
        assert "annotations" not in each["metadata"]


def test_there_is_none_unless_it_is_asked_for() -> None:
    assert config_maps({"metrics": {"enabled": True}}) == []
    done = template({"metrics": {"dashboards": {"enabled": True}}})
    assert "need metrics.enabled: true" in done.stderr


def test_ids_and_titles_are_those_of_one_dashboard_alone() -> None:
    for name in ("uid", "title"):
        assert len({each.json[name] for each in ALL}) == len(ALL)
    assert all(each.json["uid"].startswith("ebpflb-") for each in ALL)


@each_dashboard
def test_a_dashboard_leads_to_the_others_and_to_any_prometheus(dashboard: Dashboard) -> None:
    found = dashboard.json
    assert found["id"] is None
    assert found["schemaVersion"] >= 39
    assert found["refresh"] == "30s"
    assert {tag for link in found["links"] for tag in link["tags"]} <= set(found["tags"])
    assert next(iter(dashboard.variables.values()))["type"] == "datasource"
    sources = re.findall(r'"uid": "([^"]*)"', json.dumps([found["panels"], found["templating"]]))
    assert set(sources) == {"${datasource}"}


@each_dashboard
def test_links_to_a_dashboard_name_one_that_is_there(dashboard: Dashboard) -> None:
    uids = {each.json["uid"] for each in ALL}
    assert set(re.findall(r'"/d/([\w-]+)/', dashboard.path.read_text())) <= uids


@each_dashboard
def test_every_panel_says_what_it_shows(dashboard: Dashboard) -> None:
    titles = [panel["title"] for panel in dashboard.panels]
    assert len(set(titles)) == len(titles)
    for panel in dashboard.panels:
        assert panel["title"], panel["id"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["type"] in KINDS, panel["title"]
        assert unit_of(panel) in UNITS, panel["title"]
        assert panel["targets"], panel["title"]


@each_dashboard
def test_panels_neither_overlap_nor_leave_the_grid(dashboard: Dashboard) -> None:
    everything = dashboard.json["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    places = [panel["gridPos"] for panel in everything]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)


@each_dashboard
def test_every_expression_is_about_what_the_agent_exposes(dashboard: Dashboard) -> None:
    known = exposed()
    for query in dashboard.queries():
        used = metrics_of(query.expression)
        assert used, query
        assert used <= set(known), query
        has = OF_TARGETS.union({"le"}, *(known[name] for name in used))
        assert labels_of(query.expression) <= has, query
        chosen = 'cluster=~"$cluster", job=~"$job", instance=~"$instance"'
        assert query.expression.count(chosen) >= len(used), query


@each_dashboard
def test_clusters_are_told_apart_and_need_no_label(dashboard: Dashboard) -> None:
    variable = dashboard.variables["cluster"]
    assert re.fullmatch(variable["allValue"], "")
    assert variable["current"]["value"] == ["$__all"]
    for query in dashboard.queries():
        for names in re.findall(r"\bby \(([^)]*)\)", query.expression):
            assert not OF_ONE_CLUSTER & set(names.split(", ")) or "cluster" in names, query
    text = dashboard.path.read_text()
    assert text.count("${cluster:queryparam}") == text.count('"/d/')


@each_dashboard
def test_legends_name_labels_that_the_series_have(dashboard: Dashboard) -> None:
    for panel in dashboard.panels:
        for target in panel["targets"]:
            grouped = re.search(r"\bby \(", target["expr"])
            has = labels_of(target["expr"]) if grouped else OF_TARGETS | {"port", "protocol"}
            assert set(LEGEND.findall(target["legendFormat"])) <= has, panel["title"]
        if panel["type"] == "timeseries" and len(panel["targets"]) > 1:
            legends = [target["legendFormat"] for target in panel["targets"]]
            assert len(set(legends)) == len(legends), panel["title"]


@each_dashboard
def test_variables_are_filled_from_labels_that_are_there(dashboard: Dashboard) -> None:
    known = exposed()
    defined: dict[str, str] = {"__rate_interval": "1m", "__range": "1h"}
    for name, variable in dashboard.variables.items():
        if variable["type"] == "query":
            selector, label = values_asked_for(variable)
            (metric,) = metrics_of(selector)
            assert {label, *labels_of(selector)} <= known[metric]
            assert "$" not in replaced(selector, defined), "defined before"
        defined[name] = "x"
    for query in dashboard.queries():
        assert "$" not in replaced(query.expression, defined), query
