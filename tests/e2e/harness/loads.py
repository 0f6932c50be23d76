# SPDX-License-Identifier: Apache-2.0
"""Load on every path to a Service while something happens, and no connection may fail."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from ebpflb.lab import Lab, LoadResult, Member
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.member import LoadRun
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.questions import PROTOCOLS
from tests.e2e.harness.waiting import wait_until

_RATE = 40.0
# Replies take milliseconds; only lost packets take seconds.
_PATIENCE = 5.0
# This many connections at once all miss one of two backends once in 10^10 runs.
_MANY = 36
_SOME = 10

Place = tuple[str, int]


class Way(NamedTuple):
    """The client, the address and port, and the options of the load."""

    name: str
    source: Member
    place: Place
    options: dict[str, Any]


class Loads:
    """The running loads, and later their results, by path."""

    def __init__(self, running: Mapping[str, LoadRun]) -> None:
        self._running = running
        self._left_behind = _left_behind()
        self.results: dict[str, LoadResult] = {}

    def wait_for(self, pod: Member) -> None:
        """Return when this pod has answered some more new connections on every path."""
        self._wait(lambda pods: pods[pod.name], pod.name)

    def go_on(self) -> None:
        """Return when some more new connections were answered on every path."""
        self._wait(lambda pods: pods.total(), "anybody")

    def _wait(self, count: Callable[[Counter[str]], int], whom: str) -> None:
        new = {name: each for name, each in self._running.items() if not _is_held(name)}
        wanted = {name: count(each.pods()) + _SOME for name, each in new.items()}

        def have_come() -> bool:
            return all(count(new[name].pods()) >= wanted[name] for name in new)

        wait_until(have_come, f"new connections to {whom}")

    def held(self) -> list[LoadResult]:
        """The results of the connections held open."""
        return [each for name, each in self.results.items() if _is_held(name)]

    def stop(self) -> None:
        """Stop; none of them may have failed."""
        self.results.update({name: load.stop() for name, load in self._running.items()})
        failed = {name: each.failures for name, each in self.results.items() if each.failed}
        # What a busy CPU could not take from a queue of its own is lost for UDP.
        assert failed == {}, f"{_left_behind() - self._left_behind} packets left behind by the CPUs"


def _left_behind() -> int:
    """Packets that the machine has dropped because a CPU's queue was full (net/core/dev.c)."""
    rows = Path("/proc/net/softnet_stat").read_text().splitlines()
    return sum(int(row.split()[1], 16) for row in rows)


def _is_held(name: str) -> bool:
    return name.startswith("held")


@contextmanager
def none_fails(
    cluster: Cluster, spec: ServiceSpec, *, held: bool = False, only: str = ""
) -> Iterator[Loads]:
    """New connections all the time, from pod, host and outside, TCP and UDP, every family.

    held: also TCP connections through the NodePort that stay open, with exchanges all the time;
    their backends must not change. only: one protocol. The results are there when the block has
    ended.
    """
    with _running(_of(only, _to_service(cluster, spec, held=held))) as loads:
        yield loads


@contextmanager
def none_fails_directly(lab: Lab, *, only: str = "") -> Iterator[None]:
    """From pod and host directly to pods on both nodes: new connections and held ones."""
    with _running(_of(only, _to_pods(lab))):
        yield


def _of(protocol: str, ways: Iterable[Way]) -> list[Way]:
    return [way for way in ways if way.options["protocol"] in (protocol or PROTOCOLS)]


@contextmanager
def _running(ways: Iterable[Way]) -> Iterator[Loads]:
    with ExitStack() as stack:
        loads = Loads(
            {
                way.name: stack.enter_context(way.source.start_load(*way.place, **way.options))
                for way in ways
            }
        )
        yield loads
        loads.stop()


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
    options = {"protocol": "tcp", "timeout": _PATIENCE, "exchanges": 0, "interval": 0.15} | number
    return Way(f"held by {source.name}, to {place[0]}", source, place, options)
