# SPDX-License-Identifier: Apache-2.0
import time

import pytest

from ebpflb.dataplane import quiesce


def test_the_kernel_is_asked_for_a_grace_period(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    quiesce.membarrier()
    assert slept == []


def test_a_kernel_that_refuses_is_given_time(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(quiesce, "_GLOBAL", 1 << 20)
    quiesce.membarrier()
    assert slept == [0.1]
