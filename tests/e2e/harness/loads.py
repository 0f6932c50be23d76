# SPDX-License-Identifier: Apache-2.0
"""Load on every way to a Service while something happens, without a connection that fails."""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

from ebpflb.lab import Lab, LoadResult, Member
from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import PROTOCOLS

_RATE = 40.0
# Answers take milliseconds; only what is lost, or a machine at its limits, takes seconds.
_PATIENCE = 5.0
# So many connections at once that backends here and elsewhere are among them.
_MANY = 12

Results = dict[str, LoadResult]
Place = tuple[str, int]


class Way(NamedTuple):
    """From where, to which address and port, and the options of the load."""

    name: str
    source: Member
    place: Place
    options: dict[str, Any]


@contextmanager
def none_fails(
    cluster: Cluster, spec: ServiceSpec, *, held: bool = False, only: str = ""
) -> Iterator[Results]:
    """New connections all the time, from pod, host and outside, TCP and UDP, every family.

    held: and TCP connections through the NodePort that stay, with exchanges all the time; their
    backends must stay too. only: one protocol. The results are there when the block has ended.
    """
    with _running(_of(only, _to_service(cluster, spec, held=held))) as results:
        yield results


@contextmanager
def none_fails_directly(lab: Lab, *, only: str = "") -> Iterator[None]:
    """From pod and host straight to pods, here and elsewhere: new connections and held ones."""
    with _running(_of(only, _to_pods(lab))):
        yield


def _of(protocol: str, ways: Iterable[Way]) -> list[Way]:
    return [way for way in ways if way.options["protocol"] in (protocol or PROTOCOLS)]


@contextmanager
def _running(ways: Iterable[Way]) -> Iterator[Results]:
    results: Results = {}
    with ExitStack() as stack:
        running = {
            way.name: stack.enter_context(way.source.start_load(*way.place, **way.options))
            for way in ways
        }
        yield results
        results.update({name: load.stop() for name, load in running.items()})
    failed = {name: each.errors for name, each in results.items() if each.failed or not each.ok}
    assert failed == {}


def _to_service(cluster: Cluster, spec: ServiceSpec, *, held: bool) -> Iterator[Way]:
    lab = cluster.lab
    node, pod, client = lab.node("node1"), lab.pod("pod-1-1"), lab.client
    for version in cluster.versions:
        service = (lab.cluster_ip(spec.number, version), spec.port)
        outside = (address_of(node, version), spec.node_port)
        yield _new(pod, service, "tcp")
        yield _new(pod, service, "udp")
        yield _new(node, service, "tcp")
        yield _new(client, outside, "tcp")
        yield _new(client, outside, "udp")
        if held:
            yield _held(client, outside)


def _to_pods(lab: Lab) -> Iterator[Way]:
    for source, target in (
        (lab.pod("pod-1-1"), lab.pod("pod-2-1")),
        (lab.node("node1"), lab.pod("pod-1-1")),
    ):
        for address in target.addresses:
            place = (address, lab.config.port)
            yield _new(source, place, "tcp")
            yield _new(source, place, "udp")
            yield _held(source, place)


def _new(source: Member, place: Place, protocol: str) -> Way:
    options = {"protocol": protocol, "rate": _RATE, "timeout": _PATIENCE, "workers": 8}
    return Way(f"{source.name}, {protocol} to {place[0]}", source, place, options)


def _held(source: Member, place: Place) -> Way:
    number = {"count": _MANY, "workers": _MANY}
    options = {"protocol": "tcp", "timeout": _PATIENCE, "exchanges": 0, "interval": 0.05} | number
    return Way(f"held by {source.name}, to {place[0]}", source, place, options)
