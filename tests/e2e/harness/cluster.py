# SPDX-License-Identifier: Apache-2.0
"""A lab with agents on its nodes, and Services that a test makes there."""

import itertools
import os
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.lab import Lab, LabConfig, LabNode, Member
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import NodeAgent
from ebpflb.lab.offloads import wire
from ebpflb.model.address import Protocol, format_address
from ebpflb.model.flow import Counts
from ebpflb.model.service import ServiceName
from tests.e2e.harness.in_force import pinned_maps, wait_in_force
from tests.e2e.mode import present_mode

_LABS = itertools.count()
_FIRST_NODE_PORT = 31000

TERMINATING = {"ready": False, "serving": True, "terminating": True}


class Cluster:
    """`nodes`: those with an agent."""

    def __init__(self, lab: Lab, agents: Mapping[str, NodeAgent]) -> None:
        self.lab = lab
        self.agents = agents
        self._numbers = itertools.count(100)
        self._files: set[str] = set()

    @property
    def nodes(self) -> tuple[LabNode, ...]:
        return tuple(agent.node for agent in self.agents.values())

    @property
    def versions(self) -> tuple[int, ...]:
        """The IP versions of the lab."""
        return self.lab.config.family.versions

    def new(
        self, kind: str = "NodePort", annotations: Mapping[str, str] | None = None, **spec: Any
    ) -> ServiceSpec:
        """A Service that no other test uses; keywords are fields of its spec.

        annotations: without their prefix ebpflb.io/.
        """
        number = next(self._numbers)
        node_port = 0 if kind == "ClusterIP" else _FIRST_NODE_PORT + number
        return ServiceSpec(
            f"service-{number}",
            number,
            kind,
            node_port=node_port,
            spec=spec,
            annotations=annotations or {},
        )

    def serve(
        self,
        spec: ServiceSpec,
        pods: Sequence[Member] = (),
        terminating: Collection[Member] = (),
        *,
        wait: bool = True,
        target_port: int = 0,
    ) -> ServiceSpec:
        """Serve the Service from these pods on all nodes; return when that is in force.

        target_port: if not the port that the pods listen on.
        """
        objects = self.lab.service(spec, [*pods, *terminating])
        for port in (each for item in objects for each in item.get("ports", ())):
            port["port"] = target_port or port["port"]
        ending = {address for pod in terminating for address in pod.addresses}
        for endpoint in (each for item in objects for each in item.get("endpoints", ())):
            if endpoint["addresses"][0] in ending:
                endpoint["conditions"] = TERMINATING
        self.write(spec, objects, wait=wait)
        return spec

    def write(
        self, spec: ServiceSpec, objects: Iterable[dict[str, Any]], *, wait: bool = True
    ) -> None:
        """Write these objects of a Service; return when they are in force."""
        self._files.add(f"{spec.name}.yaml")
        self.lab.write_manifests(objects, f"{spec.name}.yaml")
        if wait:
            wait_in_force(self.nodes)

    def remove(self, spec: ServiceSpec) -> None:
        """Delete a Service; return when no node serves it any more."""
        self.lab.remove_manifests(f"{spec.name}.yaml")
        self._files.discard(f"{spec.name}.yaml")
        wait_in_force(self.nodes)

    def clear(self) -> None:
        """Delete everything that tests have created."""
        while self._files:
            self.lab.remove_manifests(self._files.pop())

    def cluster_ips(self, spec: ServiceSpec) -> list[str]:
        """The ClusterIPs, one for each family."""
        return [self.lab.cluster_ip(spec.number, version) for version in self.versions]

    def way(self, spec: ServiceSpec, source: str, version: int) -> tuple[Member, str, int]:
        """To a Service: `client` asks its NodePort at node1, other members its ClusterIP."""
        if source == "client":
            return self.lab.client, address_of(self.lab.node("node1"), version), spec.node_port
        return self.lab.member(source), self.lab.cluster_ip(spec.number, version), spec.port

    def ways(self, spec: ServiceSpec) -> list[tuple[Member, str, int]]:
        """From a pod, a process of the node and outside, in every family."""
        sources = ("pod-1-1", "node1", "client")
        return [self.way(spec, source, version) for version in self.versions for source in sources]

    def backend(self, spec: ServiceSpec, pod: Member, node: str = "node1") -> Counts:
        """A node's counters for a pod behind the NodePort, TCP of the primary family."""
        maps = pinned_maps(self.lab.node(node))
        (found,) = {
            each.in_use(backend).counts
            for each in read_frontends(maps, ServiceName("default", spec.name))
            for backend in each.frontend.others.backends
            if each.frontend.key.protocol is Protocol.TCP
            and format_address(backend.address) == pod.addresses[0]
        }
        return found


@contextmanager
def built(config: LabConfig) -> Iterator[Lab]:
    """The lab, deleted at the end."""
    with Lab.up(config) as lab:
        yield lab


@contextmanager
def started(
    lab: Lab, logs: Path, options: Sequence[str] = (), nodes: Collection[str] = ()
) -> Iterator[Cluster]:
    """Agents on these nodes, or all, in sync; their exit status is ignored."""
    chosen = [lab.node(name) for name in nodes] or lab.nodes
    if present_mode().xdp != "off":
        wire(lab)
    agents = {node.name: NodeAgent(node, logs / f"{node.name}.log", options) for node in chosen}
    with ExitStack() as stack:
        for agent in agents.values():
            stack.callback(agent.kill)
            agent.start()
        for agent in agents.values():
            agent.wait_in_sync()
        cluster = Cluster(lab, agents)
        stack.callback(cluster.clear)
        yield cluster


def lab_name() -> str:
    """A name for another lab of this run."""
    return f"e2e-{os.getpid()}-{next(_LABS)}"


@contextmanager
def stopped(lab: Lab, pod: Member) -> Iterator[None]:
    """The pod does not reply, as if it had crashed without closing anything."""
    (server,) = (row.pid for row in lab.status() if row.name == pod.name)
    os.kill(server, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server, signal.SIGCONT)


def address_of(member: Member, version: int) -> str:
    """The member's address of IP version 4 or 6."""
    return member.ipv4 if version == 4 else member.ipv6
