# SPDX-License-Identifier: Apache-2.0
"""The privileges that the agent's threads drop after their start, tried from inside and read from
outside.
"""

import json
import subprocess
import sys
from collections import Counter
from errno import EACCES, EPERM
from pathlib import Path

import pytest

from ebpflb.agent.rights import Rights, Role, agent_role, client_role, source_role
from ebpflb.dataplane.kernel.landlock import landlock_version
from ebpflb.errors import ProbeError
from tests.e2e.harness.command import status
from tests.e2e.operations import attempts
from tests.e2e.operations.attempts import ALL, OF_CLIENTS, OF_NOBODY, OF_THE_LOOP, SLOW_ANSWER
from tests.skips import kernel_lacks


def tried(role: str) -> dict[str, int]:
    """The error number of each attempt of a thread of this role, 0 for success."""
    command = [sys.executable, "-m", attempts.__name__, role]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    found: dict[str, int] = json.loads(done.stdout)
    return found


def refused(role: str) -> set[str]:
    return {name for name, error in tried(role).items() if error in {EPERM, EACCES}}


@pytest.fixture
def landlock() -> None:
    try:
        landlock_version()
    except ProbeError as error:
        kernel_lacks("Landlock", str(error))


def test_root_may_do_all_of_it():
    assert tried("none").keys() == ALL.keys()
    assert refused("none") == set()


def test_the_agent_does_no_more_than_serve_services():
    assert refused("agent") == OF_NOBODY.keys()


def test_who_reads_objects_changes_no_map_and_executes_nothing(landlock: None):
    assert refused("sources") == OF_NOBODY.keys() | OF_THE_LOOP.keys()


def test_who_talks_to_clients_reads_and_writes_nothing_else(landlock: None):
    assert refused("clients") == OF_NOBODY.keys() | OF_THE_LOOP.keys() | OF_CLIENTS.keys()


def test_what_takes_time_is_made_with_the_agents_rights():
    assert tried("clients")[SLOW_ANSWER] == 0


def rights_of_threads(pid: int) -> Counter[tuple[int, str, str]]:
    """The number of threads with these capabilities, no_new_privs and a seccomp filter."""
    found: Counter[tuple[int, str, str]] = Counter()
    for thread in Path(f"/proc/{pid}/task").iterdir():
        lines = (thread / "status").read_text().splitlines()
        facts = dict(line.split(":\t", 1) for line in lines)
        found[int(facts["CapPrm"], 16), facts["NoNewPrivs"], facts["Seccomp"]] += 1
    return found


def as_root(role: Role) -> tuple[int, str, str]:
    return sum(1 << each for each in role.capabilities), "1", "2"


def test_every_thread_of_an_agent_has_a_role(landlock, cluster, lab):
    agent = status(lab.node("node1"))["agent"]
    assert agent["rights_kept"] == {}
    found = rights_of_threads(agent["pid"])
    client, source = as_root(client_role()), as_root(source_role(with_plugins=False))
    assert found.keys() == {as_root(agent_role()), client, source}
    assert (found[client], found[source]) == (1, 1)


def test_without_the_library_an_agent_runs_and_says_so_once(landlock, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "seccomp", None)
    rights = Rights()
    assert rights.started(client_role(), lambda: "runs") == "runs"
    assert rights.started(client_role(), lambda: "again") == "again"
    kept = rights.kept
    assert kept.keys() == {"system calls"}
    assert "install the distribution's package (Debian: python3-seccomp)" in kept["system calls"]
    assert caplog.messages == [f"cannot give up rights: {kept['system calls']}"]
