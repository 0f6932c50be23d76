# SPDX-License-Identifier: Apache-2.0
"""Each alert fires exactly when it should, and has its section in the runbook."""

import json
import re
import shutil
import subprocess
from itertools import chain
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

import ebpflb
from ebpflb.cli import main
from ebpflb.observe.metrics.latency import BOUNDS
from tests.chart.harness.alerts import alerts, records, rules, write_rules
from tests.chart.harness.exposed import exposed, labels_of, metrics_of
from tests.chart.harness.rendering import CHART, EVERYTHING, Object, installed, render

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs" / "runbook.md"
CASES = yaml.safe_load(Path(__file__).with_name("alert_cases.yaml").read_text())
# Of every section of the runbook, in this order.
PARTS = ("It means", "Users notice", "Look", "Do")
# Not an alert, but notes about all of them.
BEFORE = {"Before anything else"}

each_case = pytest.mark.parametrize("case", ["fires", "quiet"])


def promtool(*arguments: str, cwd: Path) -> "subprocess.CompletedProcess[str]":
    command = ["promtool", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def firing(name: str, expected: int, cluster: str = ".*") -> Object:
    """A promtool test: the number of alerts of that name that fire, in clusters with such names."""
    chosen = f'alertname="{name}", alertstate="firing", cluster=~"{cluster}"'
    expression = f"count(ALERTS{{{chosen}}}) or vector(0)"
    answer = [{"labels": "{}", "value": expected}]
    return {"expr": expression, "eval_time": "50m", "exp_samples": answer}


def sections() -> dict[str, str]:
    """The runbook's sections by their headings."""
    found = re.split(r"^## (.+)\n", RUNBOOK.read_text(), flags=re.MULTILINE)
    return dict(zip(found[1::2], found[2::2], strict=True))


def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    groups = rules()
    path = write_rules(groups, tmp_path / "rules.yaml")
    done = promtool("check", "rules", path.name, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"SUCCESS: {sum(map(len, groups.values()))} rules found" in done.stdout


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    assert list(CASES) == [rule["alert"] for rule in alerts()]
    assert all(set(case) == {"fires", "quiet"} for case in CASES.values())


@each_case
def test_promtool_finds_every_alert_to_fire_as_it_should(case: str, tmp_path: Path) -> None:
    write_rules(rules(), tmp_path / "rules.yaml")
    tests: list[dict[str, Any]] = [
        {
            "name": name,
            "interval": "1m",
            "input_series": [{"series": key, "values": text} for key, text in cases[case].items()],
            "promql_expr_test": [firing(name, int(case == "fires"))],
        }
        for name, cases in CASES.items()
    ]
    text = yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m"})
    (tmp_path / "tests.yaml").write_text(text + yaml.safe_dump({"tests": tests}))
    done = promtool("test", "rules", "tests.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_one_prometheus_tells_clusters_apart(tmp_path: Path) -> None:
    write_rules(rules(), tmp_path / "rules.yaml")
    tests = []
    for name, cases in CASES.items():
        series = {
            key.replace("{", f'{{cluster="{cluster}", ', 1): text
            for cluster, case in (("east", "fires"), ("west", "quiet"))
            for key, text in cases[case].items()
        }
        if name == "EbpflbAbsent":
            series['ebpflb_build_info{cluster="east", instance="a"}'] = "1x20"
        tests.append(
            {
                "name": name,
                "interval": "1m",
                "input_series": [{"series": key, "values": text} for key, text in series.items()],
                "promql_expr_test": [firing(name, 1), firing(name, 1, cluster="east")],
            }
        )
    text = yaml.safe_dump({"rule_files": ["rules.yaml"], "evaluation_interval": "1m"})
    (tmp_path / "tests.yaml").write_text(text + yaml.safe_dump({"tests": tests}))
    done = promtool("test", "rules", "tests.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@each_case
def test_cases_are_made_of_series_that_the_agent_exposes(case: str) -> None:
    known = exposed()
    for cases in CASES.values():
        for series in cases[case]:
            (name,) = metrics_of(series)
            assert labels_of(series) <= {*known[name], "le"}, series


def test_every_rule_is_about_series_that_the_agent_exposes_or_that_are_recorded() -> None:
    known = dict(exposed())
    for rule in records():
        used = metrics_of(rule["expr"])
        assert used <= set(known), rule
        left = labels_of(rule["expr"]) - {"le"}
        known[rule["record"]] = frozenset(left or set().union(*(known[name] for name in used)))
    for rule in alerts():
        used = metrics_of(rule["expr"])
        assert used, rule["alert"]
        assert used <= set(known), rule["alert"]
        has = {"le"}.union(*(known[name] for name in used))
        told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert told | labels_of(rule["expr"]) <= has, rule["alert"]


def test_every_alert_reports_only_labels_that_are_left() -> None:
    for rule in alerts():
        told = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        if grouped := re.search(r"\bby \(([^)]*)\)", rule["expr"]):
            assert told <= {name.strip() for name in grouped[1].split(",")}, rule["alert"]


def test_every_alert_says_how_bad_it_is_what_it_means_and_where_to_read_on() -> None:
    for rule in alerts():
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert rule["for"].endswith("m")
        assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
        anchor = f"#{rule['alert'].lower()}"
        assert rule["annotations"]["runbook_url"] == f"https://example.org/runbook{anchor}"


def given(chosen: Object, **rule: str) -> dict[str, Object]:
    """The alerts by name, with these changes."""
    rule_values = {"enabled": True, "alerts": chosen, **rule}
    found = alerts({"metrics": {"enabled": True, "prometheusRule": rule_values}})
    return {each["alert"]: each for each in found}


def test_an_alert_can_be_switched_off_and_the_others_stay() -> None:
    usual, without = given({}), given({"EbpflbImbalance": {"enabled": False}})
    assert without == {name: each for name, each in usual.items() if name != "EbpflbImbalance"}


def test_an_alert_can_be_tuned_and_the_others_stay() -> None:
    tuned = {"for": "1h", "threshold": 0.95, "labels": {"severity": "info", "team": "a"}}
    name, usual = "EbpflbMapNearlyFull", given({})
    changed = given({name: tuned})
    alert = changed.pop(name)
    assert alert["expr"] == usual[name]["expr"].replace("> 0.8", "> 0.95")
    assert (alert["for"], alert["labels"]) == ("1h", {"severity": "info", "team": "a"})
    assert changed == {key: each for key, each in usual.items() if key != name}


def test_a_threshold_may_be_nothing_at_all() -> None:
    expression = given({"EbpflbMapNearlyFull": {"threshold": 0}})["EbpflbMapNearlyFull"]["expr"]
    assert expression.endswith("> 0")


def test_no_threshold_is_left_unsaid() -> None:
    assert not [each["alert"] for each in alerts() if "$threshold" in str(each)]
    assert not [each["alert"] for each in alerts() if "threshold" in each]


def latency_rules(**metrics: Any) -> list[Object]:
    """What is rendered about latency."""
    found = rules({"metrics": {"enabled": True, "prometheusRule": {"enabled": True}, **metrics}})
    return [
        rule for rule in chain(*found.values()) if re.search("connects|_connect_", rule["expr"])
    ]


def test_nothing_is_about_latency_unless_agents_count_it() -> None:
    assert latency_rules() == []
    assert latency_rules(latency=True)


def test_the_limit_of_slow_connects_is_that_of_the_values() -> None:
    assert 'le="0.05"' in str(latency_rules(latency=True))
    chosen = {"enabled": True, "slowConnectSeconds": 0.25}
    changed = str(latency_rules(latency=True, prometheusRule=chosen))
    assert 'le="0.25"' in changed
    assert "longer than 0.25 s" in changed
    assert 'le="0.05"' not in changed


def test_only_bounds_of_buckets_can_be_the_limit_of_slow_connects() -> None:
    values = json.loads((CHART / "values.schema.json").read_text())["properties"]
    rule = values["metrics"]["properties"]["prometheusRule"]["properties"]
    # YAML has no form of its own for whole numbers as floats, which buckets have.
    assert rule["slowConnectSeconds"]["enum"] == [each for each in BOUNDS if 0.001 <= each < 1]


def memory_limit(quantity: object) -> str:
    """The expression of the alert; "" without one."""
    found = rules(
        {
            "metrics": {"enabled": True, "prometheusRule": {"enabled": True}},
            "resources": {"limits": {"memory": quantity}} if quantity else {},
        }
    )
    expressions = [
        rule["expr"] for rule in found["ebpflb"] if rule["alert"] == "EbpflbMemoryNearLimit"
    ]
    return " ".join(expressions)


@pytest.mark.parametrize(
    ("quantity", "number"),
    [
        ("512Mi", 536870912),
        ("1Gi", 1073741824),
        ("1.5G", 1500000000),
        ("800k", 800000),
        (268435456, 268435456),
        ("268435456", 268435456),
    ],
)
def test_memory_is_compared_with_the_limit_of_the_values(quantity: object, number: int) -> None:
    assert memory_limit(quantity).endswith(f"}} > 0.9 * {number}")


def test_without_a_limit_no_alert_is_about_memory() -> None:
    assert memory_limit("") == ""


def test_a_limit_that_is_no_quantity_is_refused_in_a_line() -> None:
    with pytest.raises(AssertionError, match=r'resources.limits.memory: "512MB": want a number'):
        memory_limit("512MB")


def test_links_to_the_runbook_lead_somewhere_or_are_not_there(tmp_path: Path) -> None:
    assert not any("runbook_url" in each["annotations"] for each in given({}).values())
    chart = tmp_path / "ebpflb"
    shutil.copytree(CHART, chart)
    with (chart / "Chart.yaml").open("a") as file:
        file.write("home: https://example.org/ebpflb\n")
    values = {"metrics": {"enabled": True, "prometheusRule": {"enabled": True}}}
    *_, group = installed(render(values, chart=chart), "PrometheusRule")["spec"]["groups"]
    page = f"https://example.org/ebpflb/blob/v{ebpflb.__version__}/docs/runbook.md"
    for each in group["rules"]:
        assert each["annotations"]["runbook_url"] == f"{page}#{each['alert'].lower()}"


def test_alerts_are_about_the_job_that_the_monitors_make() -> None:
    named = alerts({**EVERYTHING, "nameOverride": "proxy"})
    jobs = set(re.findall(r'job="([^"]*)"', str([rule["expr"] for rule in named])))
    assert jobs == {"proxy"}


def test_the_runbook_has_a_section_for_each_alert_and_for_nothing_else() -> None:
    assert set(sections()) - BEFORE == {rule["alert"] for rule in alerts()}


def test_every_section_says_what_it_means_who_notices_how_to_look_and_what_to_do() -> None:
    for name, text in sections().items():
        if name not in BEFORE:
            assert tuple(re.findall(r"^\*\*([^*]+)\.\*\*", text, re.MULTILINE)) == PARTS, name
            assert re.search(r"`(ebpflb|kubectl) [^`]+`", text), name


def test_commands_of_the_runbook_are_those_of_the_program() -> None:
    found = re.findall(r"`ebpflb ([a-z][^`]*)`", RUNBOOK.read_text())
    assert len(found) > 30
    for line in found:
        name, *words = line.split()
        command: click.Command = main.commands[name]
        if isinstance(command, click.Group) and words:
            command = command.commands[words[0]]
        known = {each for option in command.params for each in option.opts}
        assert {word for word in words if word.startswith("-")} <= known, line
