# SPDX-License-Identifier: Apache-2.0
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field

import pytest

from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentAnswer, ask_all

AGENTS = [
    RemoteAgent(f"node{number}", "kube-system", f"p{number}", True, "") for number in range(48)
]


@dataclass
class Slow:
    """Each question waits; how many have been started, and ran at the same time."""

    wait: Callable[[], object]
    most: int = 0
    started: int = 0
    running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, agent):
        with self.lock:
            self.started += 1
            self.running += 1
            self.most = max(self.most, self.running)
        self.wait()
        with self.lock:
            self.running -= 1
        return AgentAnswer(agent, 0)


def test_all_are_asked_but_not_more_at_a_time_than_the_limit():
    ask = Slow(threading.Barrier(8).wait)
    answers = list(ask_all(ask, AGENTS, limit=8))
    assert {each.agent for each in answers} == set(AGENTS)
    assert ask.most == 8


def test_who_stops_reading_asks_no_others():
    may_go, others = threading.Semaphore(1), set(threading.enumerate())
    ask = Slow(may_go.acquire)
    with closing(ask_all(ask, AGENTS, limit=4)) as answers:
        next(answers)
    may_go.release(len(AGENTS))
    for thread in set(threading.enumerate()) - others:
        thread.join()
    assert ask.started == 5


def test_a_bug_does_not_hang_the_reader():
    def fail():
        raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        list(ask_all(Slow(fail), AGENTS))
