# SPDX-License-Identifier: Apache-2.0
"""The agent of the image serves a node with the rights and mounts that the chart gives it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ebpflb.lab import Lab
from tests.e2e.harness.in_force import generation_of, pinned_maps, wait_in_force
from tests.e2e.harness.questions import pods_at
from tests.e2e.harness.waiting import wait_until
from tests.image.container import Container

pytestmark = [pytest.mark.bpf, pytest.mark.cluster, pytest.mark.timeout(900)]

PODS = {f"pod-{node}-{number}" for node in (1, 2) for number in (1, 2)}


@contextmanager
def running(lab: Lab, pod: Container, log: Path, *, cleanup: bool = True) -> Iterator[None]:
    """The agent on node1; it ends as in a pod. cleanup: remove what it loaded, as an uninstall."""
    node = lab.node("node1")
    with log.open("wb") as output:
        command = pod.command("run", "--config", "/etc/ebpflb/config.yaml")
        agent = node.popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        agent.terminate()
        agent.wait(20)
        if cleanup:
            node.exec(pod.command("cleanup"))


def status(lab: Lab, pod: Container) -> dict[str, Any]:
    """What `ebpflb status` of the image says, asked from a second container."""
    asking = replace(pod, bundle=pod.bundle.with_name("asking"))
    done = lab.node("node1").exec(asking.command("status", "-o", "json"), check=False)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def known_namespaces(lab: Lab) -> int:
    """How many network namespaces the socket hooks know by their cookies."""
    return len(list(pinned_maps(lab.node("node1"))["lb_netns"].items()))


def test_it_serves_pods_and_the_node(lab: Lab, pod: Container, tmp_path: Path) -> None:
    node, log = lab.node("node1"), tmp_path / "log"
    with running(lab, pod, log):
        wait_in_force([node], timeout=60)
        for version in (4, 6):
            address = lab.cluster_ip(1, version)
            for member in (node, lab.pod("pod-1-1")):
                assert pods_at(member, address, 80) == PODS, log.read_text()
        said = status(lab, pod)
        assert (said["healthy"], said["problems"]) == (True, [])
        assert known_namespaces(lab) >= 2
    assert "stopped; what is loaded keeps running" in log.read_text()
    assert not list(node.bpffs.parent.glob(f"{node.bpffs.name}/*"))


def test_without_net_admin_it_cannot_attach_filters(
    lab: Lab, pod: Container, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    attach = {**(pod.variables or {}), "EBPFLB_ATTACH": "clsact"}
    with running(lab, replace(pod.without("NET_ADMIN"), variables=attach), log):
        wait_until(lambda: "not served: device" in log.read_text(), "a refusal", 60)
        assert "clsact egress: Operation not permitted" in log.read_text()


def test_without_sys_admin_it_says_what_it_lacks(lab: Lab, pod: Container) -> None:
    command = pod.without("SYS_ADMIN").command("run", "--config", "/etc/ebpflb/config.yaml")
    done = lab.node("node1").exec(command, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: bpf system call: bpf_map_create: Operation not permitted")
    assert len(done.stderr.splitlines()) == 1


def test_what_another_container_loaded_goes_on_and_is_taken_over(
    lab: Lab, pod: Container, tmp_path: Path
) -> None:
    node, log = lab.node("node1"), tmp_path / "log"
    with running(lab, pod, log, cleanup=False):
        wait_in_force([node], timeout=60)
    generation = generation_of(node)
    assert pods_at(lab.pod("pod-1-1"), lab.cluster_ip(1, 4), 80) == PODS
    with running(lab, pod, log):
        wait_until(lambda: "in sync" in log.read_text(), "the second agent in sync", 60)
        assert generation_of(node) == generation
        assert "attached" not in log.read_text()
