# SPDX-License-Identifier: Apache-2.0
"""Two identical labs: agents run in one, and nothing of ebpflb is attached in the other.

Two nodes with a pod each, and an external client. In both labs the client has routes to the pods,
so that the direct path passes the same node as the NodePort.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import Lab, LabConfig, LabNode, Member, Stack
from ebpflb.lab import manifests as lab_manifests
from tests.bench.harness import agent, load, manifests
from tests.bench.harness.load import Goal

# The Services of the pods on the first and on the second node: ClusterIP, from the range of the
# benches' API server, and NodePort.
CLUSTER_IPS = ("10.96.200.1", "10.96.200.2")
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
    with lab("bench-ours") as ours, lab("bench-other") as other:
        yield Pair(ours, other)


@contextmanager
def pair(services: int, targets: Collection[int]) -> Iterator[Pair]:
    """Both labs, the agents in sync with this many Services.

    `targets`: the pods with their own Service, counted from 0; the other Services are made up.
    """
    with bare_pair() as found, served(found.ours, services, targets):
        yield found


@contextmanager
def left_pair(targets: Collection[int]) -> Iterator[Pair]:
    """As pair(), but the agents have exited: their programs remain attached."""
    with bare_pair() as found:
        with served(found.ours, len(targets), targets):
            pass
        yield found


@contextmanager
def served(
    lab: Lab, services: int, targets: Collection[int], options: Sequence[str] = ()
) -> Iterator[None]:
    """As pair(), for one lab. `options`: of the agents."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="ebpflb-bench-")))
        manifests.fill(directory, services - len(targets), 1, NODES)
        for number in targets:
            target = pod(lab, number)
            content = manifests.listed(target_objects(lab, number))
            manifests.write(directory, f"{target.name}.json", content)
        nodes = lab_manifests.dump(lab_manifests.nodes(lab.layout))
        manifests.write(directory, "nodes.yaml", nodes.encode())
        stack.enter_context(agents(lab, directory, options))
        yield


@contextmanager
def agents(lab: Lab, directory: Path, options: Sequence[str] = ()) -> Iterator[None]:
    """An agent on each node of a lab, in sync with the manifests there."""
    with ExitStack() as stack:
        for name in NODES:
            stack.enter_context(agent.running(lab.node(name), directory, options))
        yield


@contextmanager
def one_node(services: int, endpoints: int) -> Iterator[tuple[LabNode, Path]]:
    """The node of a lab without pods, and a directory with made-up Services; no agent yet."""
    config = LabConfig("bench-agent", nodes=1, pods=0, family=Stack.IPV4)
    with Lab.up(config) as lab, TemporaryDirectory(prefix="ebpflb-bench-") as directory:
        manifests.fill(Path(directory), services, endpoints, NODES)
        yield lab.node(NODES[0]), Path(directory)


def pod(lab: Lab, number: int) -> Member:
    """The pod on the node with this number, from 0."""
    return lab.member(f"pod-{number + 1}-1")


def target_objects(lab: Lab, number: int) -> tuple[manifests.Document, manifests.Document]:
    """The Service of a pod, and its slice."""
    name, node_port = f"target-{number}", NODE_PORTS[number]
    made = manifests.service(name, CLUSTER_IPS[number], node_port=node_port)
    addresses = [pod(lab, number).ipv4]
    return made, manifests.endpoint_slice(name, addresses, [NODES[number]], port=load.PORT)


def node_port(number: int, node: str = NODES[0]) -> Callable[[Lab], Goal]:
    """The NodePort of a pod's Service, on a node."""
    return lambda lab: (lab.node(node).ipv4, NODE_PORTS[number])


def cluster_ip(number: int) -> Callable[[Lab], Goal]:
    """The ClusterIP of a pod's Service."""
    return lambda _: (CLUSTER_IPS[number], manifests.PORT)


def straight(number: int) -> Callable[[Lab], Goal]:
    """The pod's own address, without any Service."""
    return lambda lab: (pod(lab, number).ipv4, load.PORT)


@contextmanager
def lab(name: str) -> Iterator[Lab]:
    """One of the labs, without any agent."""
    with Lab.up(LabConfig(name, nodes=len(NODES), pods=1, family=Stack.IPV4)) as made:
        pods = [pod(made, number) for number in range(len(NODES))]
        load.prepare(made.client, *(made.node(node) for node in NODES), *pods)
        for node, target in zip(NODES, pods, strict=True):
            route = ["ip", "route", "add", target.ipv4, "via", made.node(node).ipv4]
            made.client.exec(route)
        yield made
