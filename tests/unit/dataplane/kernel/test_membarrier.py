# SPDX-License-Identifier: Apache-2.0
import os
import time

import pytest

from ebpflb.dataplane.kernel import membarrier


def test_the_kernel_is_asked_for_a_grace_period(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    membarrier.membarrier()
    assert slept == []


def test_a_kernel_that_refuses_is_given_time(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(membarrier, "_GLOBAL", 1 << 20)
    membarrier.membarrier()
    assert slept == [0.1]


def test_the_kernel_is_asked_for_order(monkeypatch: pytest.MonkeyPatch):
    yielded: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yielded.append(None))
    membarrier.order_writes()
    assert not yielded
    monkeypatch.setattr(membarrier, "_GLOBAL_EXPEDITED", 1 << 20)
    membarrier.order_writes()
    assert yielded == [None]
