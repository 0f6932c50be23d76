# SPDX-License-Identifier: Apache-2.0
"""The child process that compiles, loads and pins exits with its parent."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.e2e.harness.waiting import wait_until

PARENT = """
import subprocess, sys
child = subprocess.Popen(
    [sys.executable, "-m", "ebpflb.dataplane.load.compile"], stdin=sys.stdin, start_new_session=True
)
print(child.pid, flush=True)
child.wait()
"""


def has_begun(pid: int) -> bool:
    """Whether it waits for its input."""
    return Path(f"/proc/{pid}/wchan").read_text().endswith("pipe_read")


def is_there(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_it_ends_with_an_agent_that_is_killed():
    command = [sys.executable, "-c", PARENT]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as agent:
        assert agent.stdout
        pid = int(agent.stdout.readline())
        try:
            wait_until(lambda: has_begun(pid), "it waits for its input")
            agent.kill()
            # Its input is still open.
            wait_until(lambda: not is_there(pid), "it has ended, too")
        finally:
            if is_there(pid):
                os.kill(pid, signal.SIGKILL)
