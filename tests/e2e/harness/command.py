# SPDX-License-Identifier: Apache-2.0
"""The `ebpflb` command on a node of the lab, as an operator would run it."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ebpflb.cli.explain_text import CANNOT_TELL
from ebpflb.lab import LabNode
from tests.e2e.harness.waiting import wait_until

_METRICS = """
from urllib.request import urlopen
print(urlopen("http://127.0.0.1:10249/metrics").read().decode())
"""
PROGRAM = (sys.executable, "-m", "ebpflb")


def ebpflb(node: LabNode, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end; keywords are further environment variables."""
    environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", **variables}
    return node.exec([*PROGRAM, *arguments], check=False, timeout=120, env=environment)


def status(node: LabNode, *options: str) -> dict[str, Any]:
    """The output of `ebpflb status`."""
    found: dict[str, Any] = json.loads(ebpflb(node, "status", "-o", "json", *options).stdout)
    return found


def is_hooked(node: LabNode, device: str) -> bool:
    """Whether `ebpflb status` says that a device has the programs."""
    return device in {each["place"] for each in status(node)["loaded"]["hooks"]}


def metric(node: LabNode, series: str) -> float:
    """The value of a series of the agent's metrics; 0 if it does not exist yet."""
    command = [sys.executable, "-I", "-S", "-c", _METRICS]
    lines = node.exec(command).stdout.splitlines()
    values = [line.removeprefix(f"{series} ") for line in lines if line.startswith(f"{series} ")]
    return float(values[0]) if values else 0.0


def error_line(done: "subprocess.CompletedProcess[str]") -> str:
    """The error message of a failed command: one line, besides log lines."""
    assert done.returncode in {1, 2, CANNOT_TELL}, done
    (line,) = (line for line in done.stderr.splitlines() if not line.startswith("time="))
    assert done.stdout == ""
    assert line.startswith("Error: ")
    return line.removeprefix("Error: ")


def stop_between_looks(top: "subprocess.Popen[Any]") -> bool:
    """Stop `ebpflb top --once` after its first sample. False if the second one may have begun.

    SIGCONT makes it take the second sample, however long the test's steps in between took.
    """
    wait_until(lambda: _sleeps_with_maps(top.pid), "the first look is done")
    process = Path(f"/proc/{top.pid}")
    before = (process / "syscall").read_text()
    top.send_signal(signal.SIGSTOP)
    wait_until(lambda: _state(process) in {"T", "Z"}, "it has stopped or ended")
    return _state(process) == "T" and (process / "syscall").read_text() == before


def _sleeps_with_maps(pid: int) -> bool:
    """It is in clock_nanosleep(), with all maps open."""
    return _open_maps(pid) > 1 and "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()


def _open_maps(pid: int) -> int:
    with suppress(OSError):
        links = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
        return links.count("anon_inode:bpf-map")
    return 0


def _state(process: Path) -> str:
    return (process / "stat").read_text().rpartition(")")[2].split()[0]
