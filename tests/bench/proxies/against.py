# SPDX-License-Identifier: Apache-2.0
"""New TCP connections through ebpflb, compared with kube-proxy and Cilium.

Identical labs with the same Services: ebpflb in one, the real kube-proxy in another, and Cilium in
a third where it is available. All Services have the same pod, on the second node, and the first one
has a NodePort. ClusterIPs alternate, because the position of a Service among kube-proxy's rules is
random. Direct paths come first: Cilium mistakes a direct connection for one through a NodePort that
had the same client port shortly before.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ebpflb.lab import Lab
from tests.bench import api
from tests.bench.cilium import world
from tests.bench.harness import kube_proxy, labs, load, manifests, ways
from tests.bench.harness.labs import Pair
from tests.bench.harness.load import Goal
from tests.bench.harness.manifests import Document
from tests.bench.harness.options import Options
from tests.bench.harness.report import Row
from tests.bench.harness.ways import Way
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.layout import KubeProxy

SERVICES = 1_000
TARGET = 1.0

_FAR = 1
MODES: tuple[KubeProxy, ...] = ("nftables", "iptables")
# There are 36 comparisons; all of them together may take ten minutes.
_SHARE_OF_ROUNDS = 3


def run(options: Options) -> Iterator[Row]:
    """With one Service and with many; kube-proxy in both of its modes, then Cilium."""
    fewer = options.fewer(_SHARE_OF_ROUNDS)
    for services in (1, options.scaled(SERVICES)):
        with prepared(services) as (pair, control, addresses):
            for mode in MODES:
                with kube_proxy_in(mode, pair, control, addresses):
                    for way in ways_of(mode, addresses):
                        yield ways.in_both("against", pair, way, ways.CONNECT_RATE, fewer)
            if world.is_at_hand():
                yield from _against_cilium(pair.ours, addresses, fewer)
    if not world.is_at_hand():
        yield Row("against", "Cilium", "", world.MISSING)


@contextmanager
def kube_proxy_in(
    mode: KubeProxy, pair: Pair, control: ControlPlane, addresses: Sequence[str]
) -> Iterator[None]:
    """kube-proxy in the other lab of prepared(), with rules for all of its Services."""
    expected = {*addresses, str(labs.NODE_PORTS[_FAR]), labs.pod(pair.other, _FAR).ipv4}
    with kube_proxy.running(pair.other, control, mode, expected):
        yield


def objects(addresses: Sequence[str]) -> Callable[[Lab], Iterator[tuple[Document, Document]]]:
    """The Services of prepared() with these ClusterIPs, for any lab."""
    return lambda lab: (_service(lab, number, each) for number, each in enumerate(addresses))


def _against_cilium(ours: Lab, addresses: Sequence[str], options: Options) -> Iterator[Row]:
    with world.up(objects(addresses)) as made:
        pair = Pair(ours, made.lab)
        for way in ways_of("Cilium", addresses):
            yield ways.in_both("against", pair, way, ways.CONNECT_RATE, options)


@contextmanager
def prepared(services: int) -> Iterator[tuple[Pair, ControlPlane, list[str]]]:
    """Both labs, the agents in sync, the other lab's API server; the ClusterIPs, the same in
    both.
    """
    with labs.bare_pair() as pair, api.api_server() as (control, client):
        kube_proxy.join(pair.other, control, client)
        theirs = (_service(pair.other, number, "") for number in range(services))
        addresses = api.create_all(client, theirs)
        with TemporaryDirectory(prefix="ebpflb-bench-") as directory:
            for number, address in enumerate(addresses):
                content = manifests.listed(_service(pair.ours, number, address))
                manifests.write(Path(directory), manifests.file_of(number), content)
            with labs.agents(pair.ours, Path(directory)):
                yield pair, control, addresses


def _service(lab: Lab, number: int, address: str) -> tuple[Document, Document]:
    name, pod = manifests.name_of(number), labs.pod(lab, _FAR)
    node_port = 0 if number else labs.NODE_PORTS[_FAR]
    made = manifests.service(name, address, node_port=node_port)
    return made, manifests.endpoint_slice(name, [pod.ipv4], [labs.NODES[_FAR]], port=load.PORT)


def case_of(other: str, services: int) -> str:
    """What is compared with, and how many Services both have."""
    return f"{other}, {services:,} Service{'s' * (services > 1)}"


def in_turn(addresses: Sequence[str]) -> Callable[[Lab], Goal]:
    """The next of these ClusterIPs, whenever it is asked."""
    turns = itertools.cycle(addresses)
    return lambda _: (next(turns), manifests.PORT)


def ways_of(other: str, addresses: Sequence[str]) -> Iterator[Way]:
    """All paths to the pod, with these ClusterIPs of its Services."""
    cluster_ip = in_turn(addresses)
    near = labs.node_port(_FAR, labs.NODES[_FAR])
    case = case_of(other, len(addresses))
    for kind, source, frontend in (
        ("straight, pod to pod", "pod-1-1", labs.straight(_FAR)),
        ("straight, outside to pod", "client", labs.straight(_FAR)),
        ("pod to ClusterIP", "pod-1-1", cluster_ip),
        ("host to ClusterIP", labs.NODES[0], cluster_ip),
        ("NodePort, pod on that node", "client", near),
        ("NodePort, pod on the other node", "client", labs.node_port(_FAR)),
    ):
        yield Way(f"{case}: {kind}", source, _FAR, frontend, TARGET)
