# SPDX-License-Identifier: Apache-2.0
"""Two labs of one shape: agents run in one, in the other nothing is attached by us.

Two nodes with a pod each, and a client outside. In both labs the client has routes to the pods, so
that the straight way leads through the same node as the NodePort.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import Lab, LabConfig, LabNode, Member, Stack
from ebpflb.lab.build import take_down
from tests.bench.harness import agent, load, manifests
from tests.bench.harness.load import Goal

# The Service of the pod on the first node and on the second: ClusterIP and NodePort.
CLUSTER_IPS = ("10.67.200.1", "10.67.200.2")
NODE_PORTS = (31001, 31002)

NODES = ("node1", "node2")


@dataclass(frozen=True, slots=True)
class Pair:
    """The lab with agents, and the one without."""

    ours: Lab
    other: Lab


@contextmanager
def bare_pair() -> Iterator[Pair]:
    """Both labs without any agent."""
    with _lab("bench-ours") as ours, _lab("bench-other") as other:
        yield Pair(ours, other)


@contextmanager
def pair(services: int, targets: Collection[int]) -> Iterator[Pair]:
    """Both labs, the agents in sync with so many Services.

    `targets`: the pods with a Service of their own, counted from 0; the other Services are made up.
    """
    with bare_pair() as found, _served(found, services, targets):
        yield found


@contextmanager
def left_pair(targets: Collection[int]) -> Iterator[Pair]:
    """As pair(), but the agents have ended: what they have attached stays as it is."""
    with bare_pair() as found:
        with _served(found, len(targets), targets):
            pass
        yield found


@contextmanager
def _served(found: Pair, services: int, targets: Collection[int]) -> Iterator[None]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ebpflb-bench-")))
        manifests.fill(directory, services - len(targets), 1, NODES)
        for number in targets:
            target = pod(found.ours, number)
            manifests.write(directory, f"{target.name}.json", _target(number, target.ipv4))
        stack.enter_context(agents(found.ours, directory))
        yield


@contextmanager
def agents(lab: Lab, directory: Path) -> Iterator[None]:
    """An agent on each node of a lab, in sync with the manifests there."""
    with ExitStack() as stack:
        for name in NODES:
            stack.enter_context(agent.running(lab.node(name), directory))
        yield


@contextmanager
def one_node(services: int, endpoints: int) -> Iterator[tuple[LabNode, Path]]:
    """The node of a lab without pods, and a directory with made-up Services; no agent yet."""
    config = LabConfig("bench-agent", nodes=1, pods=0, family=Stack.IPV4)
    with _up(config) as lab, TemporaryDirectory(prefix="ebpflb-bench-") as directory:
        manifests.fill(Path(directory), services, endpoints, NODES)
        yield lab.node(NODES[0]), Path(directory)


def pod(lab: Lab, number: int) -> Member:
    """The pod on the node with this number, from 0."""
    return lab.member(f"pod-{number + 1}-1")


def node_port(number: int, node: str = NODES[0]) -> Callable[[Lab], Goal]:
    """The NodePort of a pod's Service, on a node."""
    return lambda lab: (lab.node(node).ipv4, NODE_PORTS[number])


def straight(number: int) -> Callable[[Lab], Goal]:
    """The pod's own address, past all Services."""
    return lambda lab: (pod(lab, number).ipv4, load.PORT)


@contextmanager
def _lab(name: str) -> Iterator[Lab]:
    with _up(LabConfig(name, nodes=len(NODES), pods=1, family=Stack.IPV4)) as lab:
        pods = [pod(lab, number) for number in range(len(NODES))]
        load.prepare(lab.client, *(lab.node(node) for node in NODES), *pods)
        for node, target in zip(NODES, pods, strict=True):
            route = ["ip", "route", "add", target.ipv4, "via", lab.node(node).ipv4]
            lab.client.exec(route)
        yield lab


def _up(config: LabConfig) -> Lab:
    """Build a lab; first remove what a bench that was killed has left behind."""
    take_down(config.name)
    return Lab.up(config)


def _target(number: int, address: str) -> bytes:
    name = f"target-{number}"
    node_port = NODE_PORTS[number]
    made = manifests.service(name, CLUSTER_IPS[number], node_port=node_port)
    piece = manifests.endpoint_slice(name, [address], [NODES[number]], port=load.PORT)
    return manifests.listed([made, piece])
