# SPDX-License-Identifier: Apache-2.0
"""The /status page of an agent that serves."""

from typing import Any

from msgspec import convert, to_builtins

from ebpflb import __version__
from ebpflb.model.agent_report import AgentReport


def agent_report(**changed: object) -> dict[str, Any]:
    """As JSON values. `changed`: any of the fields."""
    told = {
        "version": __version__,
        "node": "node-a",
        "pid": 7,
        "started": "2026-01-01T00:00:00Z",
        "healthy": True,
        "in_sync": True,
        "last_sync": "2026-01-02T00:00:00Z",
        "services": 3,
        "frontends": 5,
        **changed,
    }
    return dict(to_builtins(convert(told, AgentReport)))
