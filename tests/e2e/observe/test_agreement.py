# SPDX-License-Identifier: Apache-2.0
"""The page, `top`, `services` and the metrics count the same connections, by the same verdicts."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import pytest

from ebpflb.lab import LabNode
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.words.connections import FAILED, FORWARDED, VERDICTS
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.questions import AT_ONCE, PROTOCOLS, Attempt, results
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until_equal
from tests.e2e.steps.limited import NOBODY, limited, vips
from tests.e2e.steps.page import followed, page_of
from tests.e2e.steps.sample import number, row_of, sampled
from tests.e2e.steps.series import Series, plain, series, wait_for

PORT = 80
TIMES = 4
HELD = 3
# UDP flows end, and are recorded, when they time out.
OPTIONS = ("--conntrack-udp-timeout", "1s", "--conntrack-udp-timeout-stream", "2s")
CLIENTS = ("pod-1-1", "pod-2-1")
COUNTS = ("connections", *VERDICTS[1:])

Numbers = Mapping[str, float]


class Sent(NamedTuple):
    """A Service, the verdict that TCP gets there, and its clients."""

    spec: ServiceSpec
    verdict: str
    attempts: list[Attempt]

    @property
    def expected(self) -> Numbers:
        """The counts of all nodes. UDP does not fail at its backend: it may be one-way."""
        every = TIMES * len(self.attempts)
        tcp = TIMES * len([each for each in self.attempts if each.protocol == "tcp"])
        counted = {
            FORWARDED: {"connections": every},
            FAILED: {"connections": every, FAILED: tcp},
        }
        nothing = dict.fromkeys(COUNTS, 0)
        return {**nothing, **counted.get(self.verdict, {self.verdict: every})}


@pytest.fixture(scope="module")
def cluster(own_lab, tmp_path_factory) -> Iterator[Cluster]:
    with started(own_lab, tmp_path_factory.mktemp("agreement"), OPTIONS) as made:
        yield made


def sent_to(cluster: Cluster) -> list[Sent]:
    """Connections that are served, refused by the backend, refused, and dropped; over TCP and
    UDP.
    """
    lab = cluster.lab
    fine = cluster.serve(cluster.new(), lab.pods)
    dead = cluster.serve(cluster.new(), lab.pods, target_port=9)
    empty = cluster.serve(cluster.new())
    closed = cluster.serve(limited(cluster.new("LoadBalancer"), NOBODY), lab.pods)
    made = [
        Sent(spec, verdict, [*inside(cluster, spec), *outside(cluster, spec)])
        for spec, verdict in ((fine, FORWARDED), (dead, FAILED), (empty, "refused"))
    ]
    places = [(each, PORT) for each in vips(cluster, closed)]
    members = [lab.pod(name) for name in CLIENTS]
    return [*made, Sent(closed, "dropped", attempts(members, places))]


def attempts(members: Iterable[Any], places: Iterable[tuple[str, int]]) -> list[Attempt]:
    known = list(places)
    return [
        Attempt(member, *place, protocol)
        for member in members
        for place in known
        for protocol in PROTOCOLS
    ]


def inside(cluster: Cluster, spec: ServiceSpec) -> list[Attempt]:
    places = [(each, PORT) for each in cluster.cluster_ips(spec)]
    return attempts([cluster.lab.pod(name) for name in CLIENTS], places)


def outside(cluster: Cluster, spec: ServiceSpec) -> list[Attempt]:
    nodes = [address_of(n, v) for n in cluster.lab.nodes for v in cluster.versions]
    return attempts([cluster.lab.client], [(each, spec.node_port) for each in nodes])


def page_says(pages: Any, spec: ServiceSpec) -> Numbers:
    """The page's connections include refused and dropped ones."""
    found = pages["view"]({"service": f"default/{spec.name}", "window": "300"})["total"]
    counts = {each: found[each] for each in COUNTS}
    return {**counts, "connections": found["connections"] - found["refused"] - found["dropped"]}


def top_says(samples: Iterable[dict[str, Any]], spec: ServiceSpec) -> Numbers:
    found = Counter[str](dict.fromkeys(COUNTS, 0))
    for sample in samples:
        for row in sample["services"]:
            if row["service"] == spec.name:
                found.update({each: number(sample, row, each) for each in COUNTS})
    return dict(found)


def services_say(cluster: Cluster, spec: ServiceSpec) -> Numbers:
    found = Counter[str](dict.fromkeys(COUNTS, 0))
    for node in cluster.lab.nodes:
        done = ebpflb(node, "services", "--service", spec.name, "-o", "json")
        for frontend in json.loads(done.stdout):
            found.update({each: frontend[each] for each in COUNTS})
    return dict(found)


def metrics_say(cluster: Cluster, spec: ServiceSpec) -> Numbers:
    pages = [series(node, spec.name) for node in cluster.lab.nodes]
    return {each: sum(total(page, f"service_{each}_total") for page in pages) for each in COUNTS}


def total(page: Series, name: str) -> float:
    return sum(value for labels, value in page.items() if labels[0] == name)


def test_everything_counts_the_same_connections(cluster):
    lab = cluster.lab
    one, two = lab.nodes
    with page_of(lab) as pages:
        followed(cluster, pages)
        sent = sent_to(cluster)

        def send() -> None:
            for each in sent:
                results(each.attempts, times=TIMES, seconds=AT_ONCE)

        other: list[dict[str, Any]] = []
        samples = [sampled(one, lambda: other.append(sampled(two, send))), *other]
        for each in sent:
            assert top_says(samples, each.spec) == each.expected
            assert services_say(cluster, each.spec) == each.expected
            wait_until_equal(partial(page_says, pages, each.spec), each.expected)
            wait_until_equal(partial(metrics_say, cluster, each.spec), each.expected)


def active_backends(node: LabNode, spec: ServiceSpec) -> int:
    """The output of `services`; frontends of one family share their backends."""
    done = ebpflb(node, "services", "--service", spec.name, "-o", "json")
    found = {
        (frontend["protocol"], backend["address"]): int(backend["active"])
        for frontend in json.loads(done.stdout)
        for choice in (frontend["local"], frontend["others"])
        for backend in choice["backends"]
    }
    return sum(found.values())


def test_everything_counts_the_same_open_connections(cluster):
    lab, node = cluster.lab, cluster.lab.node("node1")
    spec = cluster.serve(cluster.new(), lab.pods)
    places = [(lab.pod("pod-1-1"), each, PORT) for each in cluster.cluster_ips(spec)]
    places += [(lab.client, address_of(node, v), spec.node_port) for v in cluster.versions]
    with ExitStack() as stack:
        for place in places * HELD:
            assert exchange(stack.enter_context(connected(*place)))
        held = len(places) * HELD
        wait_for(node, spec.name, {plain("active_connections", "tcp"): held})
        row = row_of(sampled(node, lambda: None), spec)
        assert (row["active"], active_backends(node, spec)) == (held, held)
    wait_for(node, spec.name, {plain("active_connections", "tcp"): 0})
    row = row_of(sampled(node, lambda: None), spec)
    assert (row["active"], active_backends(node, spec)) == (0, 0)
