# SPDX-License-Identifier: Apache-2.0
"""The findings of `ebpflb doctor` on a node."""

import json
from typing import Any

from ebpflb.lab import LabNode
from tests.e2e.harness.command import ebpflb

Found = tuple[str, str, str]


def findings(node: LabNode) -> list[dict[str, Any]]:
    done = ebpflb(node, "doctor", "-o", "json")
    said = json.loads(done.stdout)
    bad = any(each["severity"] in {"warning", "error"} for each in said["findings"])
    assert (done.returncode, said["healthy"]) == ((1, False) if bad else (0, True)), done
    found: list[dict[str, Any]] = said["findings"]
    return found


def troubles(node: LabNode) -> list[Found]:
    """Severity, check and text of each problem."""
    return [
        (each["severity"], each["check"], f"{each['where']}: {each['what']}")
        for each in findings(node)
        if each["severity"] in {"warning", "error"}
    ]
