# SPDX-License-Identifier: Apache-2.0
"""The agent with clients that send half a request, and without free file descriptors."""

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count

from ebpflb.lab import LabNode, Member
from ebpflb.lab.member import NodeAgent
from tests.e2e.harness.command import ebpflb, is_hooked, status
from tests.e2e.harness.in_force import wait_in_force
from tests.e2e.harness.questions import differing, everywhere
from tests.e2e.harness.waiting import wait_until

HEALTH, METRICS = 10256, 10249
CHECK = 31999
LOCAL = {"externalTrafficPolicy": "Local", "healthCheckNodePort": CHECK}
_HALF_SENT = """
import resource, socket, sys
address, count, *ports = sys.argv[1], *map(int, sys.argv[2:])
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
kept = []
for number in range(count):
    kept.append(socket.create_connection((address, ports[number % len(ports)]), 60))
    kept[-1].sendall(b"GET /livez HTTP/1.1")
print("sent", flush=True)
sys.stdin.read()
"""
_FETCH = (
    "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=60).read().decode())"
)


@contextmanager
def half_sent(pod: Member, node: LabNode, number: int, *ports: int) -> Iterator[None]:
    """This many incomplete requests from a pod."""
    program = [sys.executable, "-I", "-S", "-c", _HALF_SENT, node.ipv4, str(number)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with pod.popen([*program, *map(str, ports)], **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "sent\n"
        yield
        process.communicate()


def fetch(node: LabNode, port: int, path: str) -> str:
    """A page of the agent, requested on its node."""
    url = f"http://127.0.0.1:{port}{path}"
    return str(node.exec([sys.executable, "-c", _FETCH, url], timeout=90).stdout)


def test_four_thousand_half_sent_requests_of_a_pod_hide_nothing(cluster, lab):
    node, pod = lab.node("node1"), lab.pod("pod-1-1")
    cluster.serve(cluster.new("LoadBalancer", **LOCAL), lab.pods)
    with half_sent(pod, node, 4000, HEALTH, CHECK):
        assert json.loads(fetch(node, HEALTH, "/livez"))["healthy"]
        assert json.loads(fetch(node, CHECK, "/"))["localEndpoints"] == 2
        assert "ebpflb_services " in fetch(node, METRICS, "/metrics")
        assert ebpflb(node, "flows", "--last", "1").returncode == 0


@contextmanager
def no_descriptor_left(pid: int) -> Iterator[None]:
    """Leave the process no free file descriptor number."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = set(map(int, os.listdir(f"/proc/{pid}/fd")))
    free = next(number for number in count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def device(node: LabNode, name: str) -> Iterator[None]:
    node.exec(["ip", "link", "add", name, "up", "type", "veth", "peer", "name", f"{name}-peer"])
    try:
        yield
    finally:
        node.exec(["ip", "link", "del", name])


def test_an_agent_without_descriptors_lives_and_catches_up(cluster, lab):
    node, agent, spec = lab.node("node1"), cluster.agents["node1"], cluster.new()
    pid = status(node)["agent"]["pid"]
    with no_descriptor_left(pid), device(node, "veth-late"):
        cluster.serve(spec, lab.pods, wait=False)
        for path in ("network", f"{spec.name}.yaml"):
            wait_until(partial(is_told, agent, path), f"{path} is told")
        with half_sent(lab.pod("pod-1-1"), node, 500, HEALTH):
            assert json.loads(fetch(node, HEALTH, "/livez"))["currentTime"]
    with device(node, "veth-later"):
        wait_until(lambda: is_hooked(node, "veth-later"), "the device is served")
        wait_in_force([node])
        assert differing(everywhere(cluster, spec), lab.pods) == {}
    assert status(node)["agent"]["pid"] == pid


def is_told(agent: NodeAgent, what: str) -> bool:
    """Whether the agent has logged that it could not do something because of too many open
    files.
    """
    lines = agent.said().splitlines()
    return any("Too many open files" in line and what in line for line in lines)
