# SPDX-License-Identifier: Apache-2.0
"""The rules of the chart as helm renders them, and the file that Prometheus loads them from."""

from pathlib import Path

import yaml

from tests.chart.harness.rendering import EVERYTHING, Object, installed, render


def rules(values: Object | None = None) -> dict[str, list[Object]]:
    """Those that record, and those that alert, by the names of their groups."""
    groups = installed(render(values or EVERYTHING), "PrometheusRule")["spec"]["groups"]
    return {group["name"]: group["rules"] for group in groups}


def records() -> list[Object]:
    """All rules that record."""
    return rules()["ebpflb-records"]


def alerts(values: Object | None = None) -> list[Object]:
    """All rules that alert."""
    return rules(values)["ebpflb"]


def write_rules(groups: dict[str, list[Object]], path: Path) -> Path:
    """Write a file of rules for Prometheus or promtool."""
    listed = [{"name": name, "rules": found} for name, found in groups.items()]
    path.write_text(yaml.safe_dump({"groups": listed}))
    return path
