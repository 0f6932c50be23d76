# SPDX-License-Identifier: Apache-2.0
"""Associations through a Service, without the kernel's own SCTP."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ebpflb.lab import Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness import association
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.in_force import wait_in_force

PORT = 80
SCRIPT = [sys.executable, "-I", "-S", str(Path(association.__file__))]
OWN_PORTS = itertools.count(42000)


@contextmanager
def answering(pod: Member, version: int, port: int) -> Iterator[None]:
    """The pod speaks SCTP."""
    command = [*SCRIPT, "answer", str(version), str(port), pod.name]
    with pod.popen(command, stdout=-1) as server:
        try:
            assert server.stdout
            assert server.stdout.readline() == "ready\n"
            yield
        finally:
            server.kill()


def serve(cluster: Cluster, pods: list[Member]) -> ServiceSpec:
    """A Service that has its port in SCTP as well."""
    spec = cluster.serve(cluster.new(), pods, wait=False)
    objects = cluster.lab.service(spec, pods)
    for each in objects:
        ports = each.get("ports") or each["spec"]["ports"]
        ports.append(ports[0] | {"name": "sctp", "protocol": "SCTP"})
    cluster.lab.write_manifests(objects, f"{spec.name}.yaml")
    wait_in_force(cluster.nodes)
    return spec


def handshake(member: Member, address: str, port: int) -> list[str]:
    """The names that answered INIT and COOKIE ECHO."""
    command = [*SCRIPT, "ask", address, str(port), str(next(OWN_PORTS))]
    lines: list[str] = member.exec(command).stdout.splitlines()
    return lines


def has_module() -> bool:
    """Whether the kernel has its SCTP module loaded."""
    modules = Path("/proc/modules")
    return modules.exists() and any(
        line.startswith("sctp ") for line in modules.read_text().splitlines()
    )


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("backend", ["pod-1-1", "pod-2-1"])
def test_an_association_opens_on_every_way(cluster, lab, client, backend, version):
    pod, had_module = lab.pod(backend), has_module()
    spec = serve(cluster, [pod])
    node_port = (address_of(lab.node("node1"), version), spec.node_port)
    cluster_ip = (lab.cluster_ip(spec.number, version), PORT)
    with answering(pod, version, lab.config.port):
        for source, place in (
            (lab.pod("pod-1-2"), cluster_ip),
            (lab.node("node1"), cluster_ip),
            (client, cluster_ip),
            (client, node_port),
        ):
            assert handshake(source, *place) == [f"{backend} odd"] * 2, (source.name, place)
    # Others may have loaded it.
    assert had_module or not has_module()
