# SPDX-License-Identifier: Apache-2.0
"""A lab as its users see it: members, manifests, up and down.

Everything is recorded before it is made (state.py), and nothing that already exists is reused. So
taking a lab down may remove all that is recorded, however far building it got.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from ebpflb.errors import ConfigError, ProbeError
from ebpflb.lab import build, manifests, namespaces, network, processes, state
from ebpflb.lab.build import Attempt
from ebpflb.lab.layout import CLIENT, UNDERLAY, LabConfig, Layout, Seat, SeatKind
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import LabNode, Member
from ebpflb.lab.state import LabState

# Seconds; the servers of all pods start at the same time.
_REACH_TIMEOUT, _REACH_TIMEOUT_PER_POD = 60.0, 0.2
# Nothing listens there; a refusal shows that the node is reachable.
_UNUSED_PORT = 9


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """pid: of a pod's server, 0 without one. state: "up" or what is wrong."""

    name: str
    kind: str
    node: str
    namespace: str
    addresses: tuple[str, ...]
    pid: int
    state: str


class Lab:
    """A lab that is up. As a context manager it is taken down at the end."""

    def __init__(self, made: LabState) -> None:
        self._made = made
        self.config = made.config
        # Unique on the machine.
        self.name = made.config.name
        # Manifests, pins and the logs of the pods.
        self.directory = made.directory
        self.layout = Layout(made.config, made.index)
        self.members = tuple(self._member(seat) for seat in self.layout.seats())

    @classmethod
    def up(cls, config: LabConfig | None = None, *, owned: bool = True) -> Self:
        """Build a lab and return when all its members reach each other.

        owned: the lab is removed by whoever looks for orphans after this process has ended.
        ConfigError when the name is in use, ProbeError when the machine lacks something; what was
        made is removed again.
        """
        config = config or LabConfig()
        if os.geteuid() != 0:
            raise ProbeError("the lab needs root: it makes network namespaces, mounts and cgroups")
        try:
            with contextlib.ExitStack() as held:
                made = build.reserve(config, held, owned=owned)
                try:
                    lab = cls(made)
                    lab._build()
                    made.complete = True
                    made.save()
                except BaseException:
                    build.remove(made)
                    raise
                return lab
        except OSError as error:
            raise ProbeError(f"lab {config.name!r} could not be built: {error}") from error

    @classmethod
    def load(cls, name: str) -> Self:
        """A lab that another process has built. ConfigError when there is none of that name."""
        return cls(state.load(name))

    def down(self) -> None:
        """Remove the lab and all that runs in it; nothing happens if it is already gone."""
        build.take_down(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.down()

    @property
    def complete(self) -> bool:
        """False while it is being built, or if that was interrupted."""
        return self._made.complete

    @property
    def nodes(self) -> tuple[LabNode, ...]:
        return tuple(member for member in self.members if isinstance(member, LabNode))

    @property
    def pods(self) -> tuple[Member, ...]:
        return tuple(member for member in self.members if member.kind is SeatKind.POD)

    @property
    def client(self) -> Member:
        """The external client: on the underlay, outside the cluster."""
        return self.member(CLIENT)

    @property
    def underlay(self) -> Member:
        """Where the uplinks of all nodes and of the client meet, e.g. for tcpdump."""
        return self.member(UNDERLAY)

    def member(self, name: str) -> Member:
        """ConfigError lists the existing names."""
        for member in self.members:
            if member.name == name:
                return member
        names = ", ".join(member.name for member in self.members)
        raise ConfigError(f"lab {self.name!r} has no {name!r}, only {names}")

    def node(self, name: str) -> LabNode:
        """ConfigError, also when a pod or the client has that name."""
        member = self.member(name)
        if not isinstance(member, LabNode):
            raise ConfigError(f"{name} is a {member.kind}, not a node")
        return member

    def pod(self, name: str) -> Member:
        """ConfigError, also when a node or the client has that name."""
        member = self.member(name)
        if member.kind is not SeatKind.POD:
            raise ConfigError(f"{name} is a {member.kind}, not a pod")
        return member

    def pods_on(self, node: str) -> tuple[Member, ...]:
        return tuple(pod for pod in self.pods if pod.node == node)

    def service(self, spec: ServiceSpec, pods: Iterable[Member]) -> list[dict[str, Any]]:
        """The objects of a Service in front of these pods, all ready."""
        names = {pod.name for pod in pods}
        seats = [seat for seat in self.layout.seats() if seat.name in names]
        return manifests.service_with_slices(self.layout, spec, seats)

    def cluster_ip(self, number: int, version: int | None = None) -> str:
        """The ClusterIP of ServiceSpec.number; version: 4 or 6, else the primary family."""
        return manifests.cluster_ip(self.layout.ranges_of(version), number)

    def ingress_ip(self, number: int, version: int | None = None) -> str:
        """The load-balancer IP of ServiceSpec.number; version: 4 or 6, else the primary family."""
        return manifests.ingress_ip(self.layout.ranges_of(version), number)

    def write_manifests(self, objects: Iterable[Mapping[str, Any]], file: str) -> None:
        """Put a file with these objects into every node's directory."""
        self._write(file, manifests.dump(objects).encode())

    def remove_manifests(self, file: str) -> None:
        """Remove a file, if it is there, from every node's directory."""
        for node in self.nodes:
            (node.manifests / file).unlink(missing_ok=True)

    def apply(self, path: Path) -> list[str]:
        """Copy a manifest, or all in a directory, to every node. Returns the names of the files."""
        files = manifests.files_of(path)
        for file, content in files.items():
            self._write(file, content)
        return list(files)

    def status(self) -> list[MemberStatus]:
        return [self._status(member) for member in self.members]

    def is_whole(self) -> bool:
        return all(row.state == "up" for row in self.status())

    def _write(self, file: str, content: bytes) -> None:
        for node in self.nodes:
            manifests.write_atomically(node.manifests, file, content)

    def _build(self) -> None:
        build.make_namespaces(self._made, self.layout)
        build.make_network(self.layout)
        build.make_places(self._made, self.members)
        build.start_pods(self._made, self.members)
        self.write_manifests(manifests.nodes(self.layout), "nodes.yaml")
        self.write_manifests(manifests.examples(self.layout), "examples.yaml")
        timeout = _REACH_TIMEOUT + len(self.pods) * _REACH_TIMEOUT_PER_POD
        build.wait_reachable(list(self._paths()), timeout)

    def _paths(self) -> Iterator[Attempt]:
        """Each pod from its node and from the next node's first pod, and all nodes' first pods.

        That uses every device and every route, without growing with the square of the pods.
        """
        first = [pod for node in self.nodes for pod in self.pods_on(node.name)[:1]]
        for node, after in zip(self.nodes, [*first[1:], *first[:1]] or self.nodes, strict=True):
            own = self.pods_on(node.name)
            elsewhere = [pod for pod in first if pod.node != node.name]
            for source in (node, after):
                yield from self._to_pods(source, own)
            for source in (node, *own[:1]):
                yield from self._to_pods(source, elsewhere)
            for address in node.addresses:
                yield Attempt(self.client, address, _UNUSED_PORT)

    def _to_pods(self, source: Member, pods: Iterable[Member]) -> Iterator[Attempt]:
        for pod in pods:
            for address in pod.addresses:
                yield Attempt(source, address, self.config.port, pod.name)

    def _status(self, member: Member) -> MemberStatus:
        recorded = self._made.processes.get(member.name)
        problem = "" if member.namespace.exists() else "no namespace"
        if member.kind is SeatKind.POD and not problem:
            running = recorded and processes.identity(recorded.pid) == recorded
            problem = "" if running else "server ended"
        return MemberStatus(
            name=member.name,
            kind=member.kind.value,
            node=member.node,
            namespace=str(member.namespace),
            addresses=member.addresses,
            pid=recorded.pid if recorded else 0,
            state=problem or "up",
        )

    def _member(self, seat: Seat) -> Member:
        node = f"node{seat.node}" if seat.node else ""
        below = f"{node}/{seat.name}" if seat.kind is SeatKind.POD else seat.name
        namespace = namespaces.path_of(self.layout.namespace(seat))
        cgroup = Path(self._made.cgroup) / below
        addresses = self.layout.addresses(seat)
        shared = (self.name, seat.kind, seat.name, node, namespace, cgroup, addresses)
        if seat.kind is not SeatKind.NODE:
            return Member(*shared)
        directory = self.directory / "nodes" / seat.name
        return LabNode(
            *shared,
            zone=self.layout.zone(seat.node),
            manifests=directory / "manifests",
            bpffs=Path(self._made.bpffs) / seat.name,
            query_socket=directory / "agent.sock",
            host_devices=network.host_devices(self.config),
            cluster_cidr=tuple(str(ranges.cluster()) for ranges in self.layout.ranges),
        )
