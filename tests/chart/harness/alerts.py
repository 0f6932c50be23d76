# SPDX-License-Identifier: Apache-2.0
"""The alerts of the chart as helm renders them, and the file that Prometheus loads them from."""

from pathlib import Path

import yaml

from tests.chart.harness.rendering import EVERYTHING, Object, installed, render


def alerts(values: Object | None = None) -> list[Object]:
    """All of them."""
    (group,) = installed(render(values or EVERYTHING), "PrometheusRule")["spec"]["groups"]
    rules: list[Object] = group["rules"]
    return rules


def write_rules(rules: list[Object], path: Path) -> Path:
    """Write a file of rules for Prometheus or promtool."""
    path.write_text(yaml.safe_dump({"groups": [{"name": "ebpflb", "rules": rules}]}))
    return path
