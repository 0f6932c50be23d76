# SPDX-License-Identifier: Apache-2.0
"""An API server, and a user's access to the agents through it."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ebpflb.kubectl import program
from ebpflb.kubectl.access import Access
from ebpflb.kubectl.execution import PodExecutor
from tests.unit.kubectl.api_server import Objects, Output, node, pod, served, write_kubeconfig


@pytest.fixture
def objects():
    return Objects()


@pytest.fixture
def kubeconfig(objects, tmp_path):
    with served(objects) as url:
        yield write_kubeconfig(tmp_path / "kubeconfig", url)


@pytest.fixture
def access(kubeconfig):
    return Access(str(kubeconfig), seconds=60)


@pytest.fixture
def executor(access):
    return PodExecutor(access)


@dataclass
class Nodes:
    """A cluster with an agent on each of its nodes. answers: node -> command -> what it prints."""

    objects: Objects
    kubeconfig: Path
    answers: dict[str, dict[str, Output]]

    def add(self, *names: str) -> None:
        """Nodes with agents."""
        for name in names:
            self.objects.lists.setdefault("/api/v1/pods", []).append(pod(name))
            self.add_without_agent(name)
            self.answers[name] = {}

    def add_without_agent(self, name: str) -> None:
        self.objects.lists.setdefault("/api/v1/nodes", []).append(node(name))

    def say(self, node: str, command: str, content: object, status: int = 0) -> None:
        """Have `ebpflb command` print this, a text or JSON."""
        text = content if isinstance(content, str) else json.dumps(content)
        self.answers[node][command] = Output(text, status=status)

    def fail(self, node: str, command: str, complaint: str, status: int = 1) -> None:
        self.answers[node][command] = Output("", complaint, status)

    def answer(self, pod: str, argv: Sequence[str]) -> Output:
        """As the agent's pod does. A command is known by its first words."""
        told = self.answers[pod.removeprefix("ebpflb-")]
        words = " ".join(argv[1:])
        fitting = [command for command in told if words.startswith(command)]
        return told[max(fitting, key=len)]

    def run(self, *arguments: str, status: int = 0) -> Result:
        """What the plugin prints; `status`: the one it must exit with."""
        given = [arguments[0], "--kubeconfig", str(self.kubeconfig), *arguments[1:]]
        done = CliRunner().invoke(program, given)
        assert done.exit_code == status, done.output
        return done


@pytest.fixture
def nodes(objects, kubeconfig):
    made = Nodes(objects, kubeconfig, {})
    objects.command = made.answer
    return made
