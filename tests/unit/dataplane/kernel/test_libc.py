# SPDX-License-Identifier: Apache-2.0
import os
import time
from errno import EBADF
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import libc


def test_a_failed_call_names_errno_and_path():
    with pytest.raises(FileNotFoundError, match="No such file or directory: '/nowhere'"):
        libc.filesystem_type(Path("/nowhere"))


def test_a_failed_call_without_a_path_names_the_errno():
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        libc.enter_network_namespace(-1)
    assert caught.value.errno == EBADF


def test_proc_is_known_by_its_number():
    assert libc.filesystem_type(Path("/proc")) == 0x9FA0


def test_the_kernel_is_asked_for_a_grace_period(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    libc.membarrier()
    assert slept == []


def test_a_kernel_that_refuses_is_given_time(monkeypatch: pytest.MonkeyPatch):
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(libc, "_GLOBAL", 1 << 20)
    libc.membarrier()
    assert slept == [0.1]


def test_the_kernel_is_asked_for_order(monkeypatch: pytest.MonkeyPatch):
    yielded: list[None] = []
    monkeypatch.setattr(os, "sched_yield", lambda: yielded.append(None))
    libc.order_writes()
    assert not yielded
    monkeypatch.setattr(libc, "_GLOBAL_EXPEDITED", 1 << 20)
    libc.order_writes()
    assert yielded == [None]
