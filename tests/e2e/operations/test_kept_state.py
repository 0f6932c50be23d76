# SPDX-License-Identifier: Apache-2.0
"""A node boots while the API server is down: it serves its last state until the API server is
back.
"""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from ebpflb.agent.sources import state_path
from ebpflb.lab import Lab
from ebpflb.lab.member import NodeAgent
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.command import ebpflb, metric, status
from tests.e2e.harness.in_force import offered, planned, wait_in_force
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.manifest_api import manifest_api
from tests.e2e.harness.questions import differing, everywhere
from tests.e2e.harness.waiting import wait_until

STALE = "ebpflb_source_stale_seconds"


class Machine:
    """The first node with its agent, whose API server exists while `api` is entered."""

    def __init__(self, lab: Lab, log: Path) -> None:
        self.lab, self.node = lab, lab.node("node1")
        self.api = ExitStack()
        node, options = self.api.enter_context(manifest_api(self.node))
        self._port = int(options[1].rpartition(":")[2])
        self.agent = NodeAgent(node, log, options)
        self.cluster = Cluster(lab, {"node1": self.agent})
        self.web = self.cluster.new()
        self.gone = self.cluster.new()
        for spec in (self.web, self.gone):
            self.cluster.serve(spec, [lab.pod("pod-1-1")], wait=False)
        self.agent.start()
        self.agent.wait_in_sync()
        wait_in_force([self.node])
        self.agent.stop()
        self.file = state_path(self.node.bpffs)
        assert self.file.exists()

    def lose_api(self) -> None:
        self.api.close()

    def return_api(self) -> None:
        self.api.enter_context(manifest_api(self.node, port=self._port))

    def reboot(self) -> None:
        """Empty the kernel's state and start the agent again."""
        self.agent.kill()
        assert ebpflb(self.node, "cleanup").returncode == 0
        assert offered(self.node) == set()
        self.agent.start()

    def end(self) -> None:
        self.agent.kill()
        ebpflb(self.node, "cleanup")
        self.api.close()
        self.cluster.clear()
        self.file.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def machine(own_lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    found = Machine(own_lab, tmp_path_factory.mktemp("kept") / "agent.log")
    yield found
    found.end()


def test_a_file_of_another_user_is_not_served(machine: Machine):
    machine.lose_api()
    os.chown(machine.file, 1, 1)
    try:
        machine.reboot()
        reason = "no kept state is served"
        wait_until(lambda: reason in machine.agent.said(), "the agent says why it serves nothing")
        assert f"{machine.file}: others may write there" in machine.agent.said()
        assert offered(machine.node) == set()
    finally:
        os.chown(machine.file, 0, 0)


def test_what_was_kept_is_served_until_the_api_server_answers(machine: Machine):
    lab, cluster, node = machine.lab, machine.cluster, machine.node
    old, new = lab.pod("pod-1-1"), lab.pod("pod-2-1")
    machine.lose_api()
    machine.reboot()
    machine.agent.wait_in_sync()
    assert offered(node) == planned(node)
    assert differing(everywhere(cluster, machine.web), [old]) == {}
    said = status(node)["agent"]
    assert said["stale_since"]
    assert "cannot reach the API server" in said["source_errors"]["api"]
    shown = ebpflb(node, "status").stdout
    assert f"serving the state of {said['stale_since']}: the API server has not answered" in shown
    assert metric(node, STALE) > 0
    with none_fails(cluster, machine.web, held=True) as loads:
        loads.wait_for(old)
        # Open connections still need the old endpoint.
        cluster.serve(machine.web, [old, new], wait=False)
        lab.remove_manifests(f"{machine.gone.name}.yaml")
        machine.return_api()
        wait_until(lambda: offered(node) == planned(node), "what the API server has by now")
        loads.wait_for(new)
    assert status(node)["agent"]["stale_since"] is None
    assert metric(node, STALE) == 0
