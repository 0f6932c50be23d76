# SPDX-License-Identifier: Apache-2.0
"""A running kube-proxy is found by its name, in this network namespace only."""

import os
import shutil
import signal
import subprocess

import pytest

from ebpflb.dataplane.kube_proxy.tools import running_kube_proxies
from tests.bpf.attach.network import entered
from tests.e2e.harness.waiting import wait_until


@pytest.fixture
def start(tmp_path):
    """Start a program that sleeps under another name."""
    started = []

    def start(name: str) -> int:
        program = shutil.copy(str(shutil.which("sleep")), tmp_path / name)
        started.append(subprocess.Popen([program, "600"]))
        return started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_it_is_found_until_it_ends(gateway, start, tmp_path):
    start("kube-proxy-exporter")
    assert running_kube_proxies() == []
    pid = start("kube-proxy")
    wait_until(lambda: running_kube_proxies() == [pid], "it is found")
    (tmp_path / "kube-proxy").unlink()
    assert running_kube_proxies() == [pid]
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: running_kube_proxies() == [], "it has ended")


def test_one_in_another_network_namespace_does_not_count(gateway, start):
    with entered(gateway.pod):
        pid = start("kube-proxy")
        wait_until(lambda: running_kube_proxies() == [pid], "it is found there")
    assert running_kube_proxies() == []
