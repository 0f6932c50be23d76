# SPDX-License-Identifier: Apache-2.0
"""The program on a node of the lab, as an operator there would call it."""

import json
import subprocess
import sys
from typing import Any

from ebpflb.lab import Node

PROGRAM = (sys.executable, "-m", "ebpflb")


def ebpflb(node: Node, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; keywords are further environment variables."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **variables}
    return node.exec([*PROGRAM, *arguments], check=False, timeout=60, env=environment)


def status(node: Node) -> dict[str, Any]:
    """What `ebpflb status` says."""
    found: dict[str, Any] = json.loads(ebpflb(node, "status", "-o", "json").stdout)
    return found


def error_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The one line, besides what it has logged, in which a command that failed says why."""
    assert done.returncode in {1, 2}, done
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("time="))
    assert done.stdout == ""
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")
