# SPDX-License-Identifier: Apache-2.0
"""The dashboards of the chart: their panels and their expressions."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.chart.harness.rendering import CHART, Object

_VARIABLE = re.compile(r"\$(\w+)")
_LABEL_VALUES = re.compile(r"label_values\((.+), (\w+)\)")


@dataclass(frozen=True)
class Dashboard:
    """One file."""

    path: Path

    @cached_property
    def json(self) -> Object:
        """As Grafana reads it."""
        found: Object = json.loads(self.path.read_text())
        return found

    @property
    def panels(self) -> list[Object]:
        """Without the rows."""
        return [each for each in self.json["panels"] if each["type"] != "row"]

    @property
    def variables(self) -> Mapping[str, Object]:
        """By name, in the order in which they depend on each other."""
        return {each["name"]: each for each in self.json["templating"]["list"]}

    def queries(self) -> Iterator["Query"]:
        """Every expression of every panel."""
        for panel in self.panels:
            for target in panel["targets"]:
                yield Query(self.path.stem, panel["title"], target["refId"], target["expr"])


@dataclass(frozen=True, slots=True)
class Query:
    """One expression, and its place in the dashboard."""

    dashboard: str
    panel: str
    ref: str
    expression: str


def dashboards() -> list[Dashboard]:
    """All of them."""
    return [Dashboard(path) for path in sorted(CHART.glob("dashboards/*.json"))]


def replaced(text: str, values: Mapping[str, str]) -> str:
    """The text with its variables replaced as Grafana does; values by name, without the $."""
    return _VARIABLE.sub(lambda found: values[found[1]], text)


def values_asked_for(variable: Object) -> tuple[str, str]:
    """The selector and the label of a variable that is filled by label_values()."""
    found = _LABEL_VALUES.fullmatch(variable["query"]["query"])
    assert found, variable["name"]
    return found[1], found[2]


def unit_of(panel: Object) -> Any:
    """The unit of the panel's numbers."""
    if panel["type"] == "heatmap":
        return panel["options"]["yAxis"]["unit"]
    return panel["fieldConfig"]["defaults"]["unit"]
