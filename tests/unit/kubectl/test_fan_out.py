# SPDX-License-Identifier: Apache-2.0
import threading
import time
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.execution import AgentAnswer
from ebpflb.kubectl.fan_out import ask_all

AGENTS = [
    RemoteAgent(f"node{number}", "kube-system", f"p{number}", True, "") for number in range(50)
]


@dataclass
class Slow:
    """Each command takes a moment; how many ran at the same time."""

    most: int = 0
    started: int = 0
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, agent, argv):
        with self.lock:
            self.started += 1
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.01)
        with self.lock:
            self.running -= 1
        return AgentAnswer(agent, 0, stdout=" ".join(argv))


def test_all_are_asked_but_not_more_at_a_time_than_the_limit():
    executor = Slow()
    answers = list(ask_all(executor, AGENTS, ["a", "b"], limit=8))
    assert {each.agent for each in answers} == set(AGENTS)
    assert {each.stdout for each in answers} == {"a b"}
    assert 1 < executor.most <= 8


def test_who_stops_reading_asks_no_others():
    executor = Slow()
    with closing(ask_all(executor, AGENTS, [], limit=4)) as answers:
        next(answers)
    time.sleep(0.1)
    assert executor.started <= 6


def test_a_bug_does_not_hang_the_reader():
    class Broken(Slow):
        def run(self, agent, argv):
            raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        list(ask_all(Broken(), AGENTS, []))
