# SPDX-License-Identifier: Apache-2.0
"""Grafana's own schema has every field of the dashboards, at its place and with its type."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard as Schema

from tests.chart.harness.dashboards import Dashboard, dashboards

# Grafana itself writes these, but its schema lacks them: the query of a variable as text, and no
# number for a dashboard that is not stored yet.
BESIDE_THE_SCHEMA = {"id", "definition"}


@pytest.fixture(autouse=True, scope="module")
def panels_are_known() -> None:
    """Options of panels and queries have separate schemas."""
    plugins.register_default_plugins()


@pytest.mark.parametrize("dashboard", dashboards(), ids=lambda each: each.path.stem)
def test_nothing_is_lost_in_the_schema(dashboard: Dashboard) -> None:
    read = Schema.from_json(dashboard.json)
    written = json.loads(JSONEncoder().encode(read))
    assert list(_lost(dashboard.json, written)) == []


def _lost(here: Any, there: Any, place: str = "") -> Iterator[str]:
    """Fields that are here and not there."""
    if isinstance(here, dict) and isinstance(there, dict):
        for name, value in here.items():
            if name in there:
                yield from _lost(value, there[name], f"{place}.{name}")
            elif name not in BESIDE_THE_SCHEMA:
                yield f"{place}.{name}"
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for number, (one, other) in enumerate(zip(here, there, strict=True)):
            yield from _lost(one, other, f"{place}[{number}]")
    elif here != there:
        yield f"{place}: {here!r} became {there!r}"
