# SPDX-License-Identifier: Apache-2.0
"""The schema of the settings file."""

import json
from functools import cache
from typing import Any

from tests.unit.docs.documents import ROOT
from tests.unit.docs.parsing import NotUnderstoodError

CHART = ROOT / "charts" / "ebpflb"


@cache
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    return found


def check_value(setting: str) -> None:
    """A key that the schema names."""
    within = schema()
    key, equals, _ = setting.partition("=")
    if not equals:
        raise NotUnderstoodError(f"{setting}: no value")
    for name in key.split("."):
        free = within.get("additionalProperties", "properties" not in within)
        if name not in within.get("properties", {}) and not free:
            raise NotUnderstoodError(f"the chart has no value {key}")
        within = within.get("properties", {}).get(name, {})
