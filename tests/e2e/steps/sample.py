# SPDX-License-Identifier: Apache-2.0
"""What `ebpflb top` saw within one second."""

import json
import signal
import subprocess
from collections.abc import Callable
from typing import Any

from ebpflb.lab import LabNode
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.command import PROGRAM, stop_between_looks

INTERVAL = 2.0


def sampled(node: LabNode, send: Callable[[], object]) -> dict[str, Any]:
    """One sample, taken while traffic is sent."""
    command = [*PROGRAM, "top", "--once", "--interval", str(INTERVAL), "-o", "json"]
    while not stop_between_looks(top := node.popen(command, stdout=subprocess.PIPE)):
        top.kill()
        top.communicate()
    send()
    top.send_signal(signal.SIGCONT)
    said, _ = top.communicate(timeout=60)
    assert top.returncode == 0
    found: dict[str, Any] = json.loads(said)
    return found


def row_of(sample: dict[str, Any], spec: ServiceSpec, protocol: str = "TCP") -> dict[str, Any]:
    rows = [each for each in sample["services"] if each["protocol"] == protocol]
    (found,) = (each for each in rows if each["service"] == spec.name)
    return dict(found)


def number(sample: dict[str, Any], row: dict[str, Any], field: str) -> int:
    """The count of something during the sample."""
    per_second, seconds = float(row[field]), float(sample["seconds"])
    return round(per_second * seconds)
