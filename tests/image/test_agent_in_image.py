# SPDX-License-Identifier: Apache-2.0
"""The agent of the image serves a node with the rights and mounts that the chart gives it."""

import json
import subprocess
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
from tests.image.container import PATIENCE, Container

pytestmark = [pytest.mark.bpf, pytest.mark.cluster, pytest.mark.timeout(900)]

PODS = {f"pod-{node}-{number}" for node in (1, 2) for number in (1, 2)}


@contextmanager
def running(lab: Lab, pod: Container, log: Path, *, cleanup: bool = True) -> Iterator[None]:
    """The agent on node1; it stops as in a pod. cleanup: remove what it loaded, as an uninstall
    does.
    """
    node = lab.node("node1")
    with log.open("wb") as output:
        command = pod.command("run", "--config", "/etc/ebpflb/config.yaml")
        agent = node.popen(command, stdout=output, stderr=output)
    try:
        yield
    finally:
        agent.terminate()
        agent.wait(PATIENCE)
        if cleanup:
            node.exec(pod.command("cleanup"), timeout=PATIENCE)


def status(lab: Lab, pod: Container) -> dict[str, Any]:
    """The output of `ebpflb status` of the image, run in a second container."""
    asking = replace(pod, bundle=pod.bundle.with_name("asking"))
    try:
        done = ran(lab, asking, "status", "-o", "json")
    finally:
        asking.end()
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def ran(lab: Lab, pod: Container, *argv: str) -> "subprocess.CompletedProcess[str]":
    """A finished command of the image on node1."""
    node = lab.node("node1")
    return node.exec(pod.command(*argv), check=False, timeout=PATIENCE)


def test_a_container_that_must_be_stopped_leaves_nothing(lab: Lab, pod: Container) -> None:
    command = pod.command("run", "--config", "/etc/ebpflb/config.yaml")
    runc = lab.node("node1").popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(pod.cgroups, "the container's cgroups", PATIENCE)
    runc.kill()
    runc.wait()
    pod.end()
    assert pod.cgroups() == []


def known_namespaces(lab: Lab) -> int:
    """How many network namespaces the socket hooks know by their cookies."""
    return len(list(pinned_maps(lab.node("node1"))["lb_netns"].items()))


def test_it_serves_pods_and_the_node_and_compiles_nothing(
    lab: Lab, pod: Container, tmp_path: Path
) -> None:
    node, log, cache = lab.node("node1"), tmp_path / "log", tmp_path / "cache"
    cache.mkdir()
    pod = replace(
        pod,
        binds={**(pod.binds or {}), "/var/cache": cache},
        writable=[*pod.writable, "/var/cache"],
    )
    with running(lab, pod, log):
        wait_in_force([node], timeout=PATIENCE)
        for version in (4, 6):
            address = lab.cluster_ip(1, version)
            for member in (node, lab.pod("pod-1-1")):
                assert pods_at(member, address, 80) == PODS, log.read_text()
        said = status(lab, pod)
        assert (said["healthy"], said["problems"]) == (True, [])
        assert said["agent"]["rights_kept"] == {}
        assert known_namespaces(lab) >= 2
        compiled = [path for path in (cache / "ebpflb").iterdir() if path.is_file()]
        assert compiled == []
    assert "stopped; loaded programs keep running" in log.read_text()
    assert not list(node.bpffs.parent.glob(f"{node.bpffs.name}/*"))


def test_without_net_admin_it_cannot_attach_filters(
    lab: Lab, pod: Container, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    attach = {**(pod.variables or {}), "EBPFLB_ATTACH": "clsact"}
    with running(lab, replace(pod.without("NET_ADMIN"), variables=attach), log):
        wait_until(lambda: "not served: device" in log.read_text(), "a refusal", PATIENCE)
        assert "clsact egress: Operation not permitted" in log.read_text()


def test_doctor_reads_rules_that_name_a_set(lab: Lab, pod: Container) -> None:
    node = lab.node("node1")
    rule = ["INPUT", "-m", "set", "--match-set", "ebpflb-test", "src", "-j", "ACCEPT"]
    node.exec(["ipset", "create", "ebpflb-test", "hash:ip"])
    node.exec(["iptables-nft", "-A", *rule])
    try:
        assert kube_proxy_findings(lab, pod) == ["ok"]
        assert kube_proxy_findings(lab, pod.without("NET_RAW")) == ["warning"]
    finally:
        node.exec(["iptables-nft", "-D", *rule])
        node.exec(["ipset", "destroy", "ebpflb-test"])


def kube_proxy_findings(lab: Lab, pod: Container) -> list[str]:
    """The severity of what the image's doctor finds of kube-proxy."""
    done = ran(lab, pod, "doctor", "-o", "json")
    found = json.loads(done.stdout)["findings"]
    return [each["severity"] for each in found if each["check"] == "kube-proxy"]


def test_without_sys_admin_it_says_what_it_lacks(lab: Lab, pod: Container) -> None:
    done = ran(lab, pod.without("SYS_ADMIN"), "run", "--config", "/etc/ebpflb/config.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: bpf system call: bpf_map_create: Operation not permitted")
    assert len(done.stderr.splitlines()) == 1


def test_what_another_container_loaded_goes_on_and_is_taken_over(
    lab: Lab, pod: Container, tmp_path: Path
) -> None:
    node, log = lab.node("node1"), tmp_path / "log"
    with running(lab, pod, log, cleanup=False):
        wait_in_force([node], timeout=PATIENCE)
    generation = generation_of(node)
    assert pods_at(lab.pod("pod-1-1"), lab.cluster_ip(1, 4), 80) == PODS
    with running(lab, pod, log):
        wait_until(lambda: "in sync" in log.read_text(), "the second agent in sync", PATIENCE)
        assert generation_of(node) == generation
        assert "attached" not in log.read_text()
