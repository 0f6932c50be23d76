# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.agent.timers import Backoff, Task, Timers
from tests.unit.agent.node import Clock


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def timers(clock):
    return Timers(clock)


def test_without_tasks_there_is_nothing_to_wait_for(timers):
    assert timers.wait() is None
    assert timers.take_due() == []


def test_tasks_come_in_the_order_of_their_deadlines(timers, clock):
    timers.start(Task.EXPIRE, 3)
    timers.start(Task.RETRY, 1)
    timers.start(Task.COMPARE, 9)
    assert timers.wait() == 1
    clock.now += 5
    assert timers.wait() == 0
    assert timers.take_due() == [Task.RETRY, Task.EXPIRE]
    assert timers.wait() == 4


def test_starting_again_moves_a_deadline_and_ensuring_does_not(timers):
    timers.start(Task.RETRY, 5)
    timers.ensure(Task.RETRY, 1)
    assert timers.wait() == 5
    timers.start(Task.RETRY, 2)
    assert timers.wait() == 2
    assert timers.is_started(Task.RETRY)
    assert not timers.is_started(Task.EXPIRE)


def test_waits_double_up_to_a_limit_and_start_over():
    backoff = Backoff(1, 5)
    assert [backoff.fail() for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset()
    assert backoff.fail() == 1
