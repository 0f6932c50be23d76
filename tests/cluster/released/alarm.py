# SPDX-License-Identifier: Apache-2.0
"""Whether an alert of the chart fires if what nodes have counted for a while goes on."""

import json
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.chart.harness.alerts import rules, write_rules
from tests.chart.harness.exposed import metrics_of
from tests.cluster.harness.nodes import ClusterNode

_PAGE = "http://127.0.0.1:10249/metrics"
# Longer than any of these alerts waits.
_MINUTES = 60


class Scrape(NamedTuple):
    """What nodes count. seconds: of a monotonic clock. values: by series, which have an instance.

    counters: the series that only grow.
    """

    seconds: float
    values: Mapping[str, float]
    counters: frozenset[str]


def scraped(nodes: Iterable[ClusterNode]) -> Scrape:
    """What the nodes' agents expose now."""
    values, counters = {}, set()
    now = time.monotonic()
    for node in nodes:
        page = node.exec(["curl", "--silent", _PAGE], check=True).stdout
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels = {**sample.labels, "instance": node.name, "job": "ebpflb"}
                told = ", ".join(f"{name}={json.dumps(text)}" for name, text in labels.items())
                series = f"{sample.name}{{{told}}}"
                values[series] = sample.value
                if family.type == "counter":
                    counters.add(series)
    return Scrape(now, values, frozenset(counters))


def fires(alert: str, before: Scrape, after: Scrape, folder: Path, **labels: str) -> bool:
    """Whether promtool finds the alert, with these labels, to fire after an hour like that."""
    groups = rules()
    (expression,) = (each["expr"] for each in groups["ebpflb"] if each["alert"] == alert)
    minutes = (after.seconds - before.seconds) / 60
    series = []
    for name, value in after.values.items():
        if metrics_of(name) <= metrics_of(expression):
            grown = value - before.values.get(name, 0) if name in after.counters else 0
            values = f"{value:f}+{grown / minutes:f}x{_MINUTES}"
            series.append({"series": name, "values": values})
    wanted = {"alertname": alert, "alertstate": "firing", **labels}
    chosen = ", ".join(f"{name}={json.dumps(text)}" for name, text in wanted.items())
    looked_for = {
        "expr": f"count(ALERTS{{{chosen}}})",
        "eval_time": f"{_MINUTES}m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [looked_for]}
    write_rules(groups, folder / "rules.yaml")
    written = {"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [test]}
    (folder / "tests.yaml").write_text(yaml.safe_dump(written))
    command = ["promtool", "test", "rules", "tests.yaml"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0
