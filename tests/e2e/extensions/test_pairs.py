# SPDX-License-Identifier: Apache-2.0
"""Services in which every two values of two annotations meet, with one agent and real clients."""

import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.lab import Lab
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.model.changes import Changes
from ebpflb.model.explain import differences
from ebpflb.model.plan import Defaults, Frontend, FrontendKey
from ebpflb.model.service import Dsr
from ebpflb.source.manifest import parse_manifest
from ebpflb.words import annotations as words
from ebpflb.words.scheduler import Scheduler
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import status
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, Attempt, results
from tests.e2e.harness.waiting import wait_until
from tests.pairs.covering import covering
from tests.pairs.effects import EFFECTS
from tests.pairs.world import SPARE

NODE = "node1"
DEFAULTS = Defaults(dsr=Dsr.ANNOTATED, table_size=251)
# The client is no endpoint.
INSIDE, HERE, ELSEWHERE, LENT = "pod-1-1", "pod-1-2", "pod-2-1", "pod-2-2"
LABELS = {HERE: "v1", ELSEWHERE: "v2"}
VALUES = {name: effect.walked for name, effect in EFFECTS.items()}
# Of the first ten, this one gives the fewest Services.
SEED = 3
MOST_SERVICES = 30
# Of the lines of its log; the other node has no agent, and the pods of the backup have no label.
EXPECTED = re.compile(
    r"no effect|do not answer on the DSR port|new (ones also|connections) go to its backup"
)


class Walked(NamedTuple):
    """A Service, and its annotations with whole names."""

    spec: ServiceSpec
    given: Mapping[str, str]

    @property
    def is_local(self) -> bool:
        return words.NO_LOCAL_ENDPOINT in self.given

    @property
    def has_backup(self) -> bool:
        return words.BACKUP in self.given

    @property
    def may_spill(self) -> bool:
        return self.has_backup and self.given.get(words.SPILL_AT) == "1"

    def pods(self, *, is_outside: bool) -> set[str]:
        """Which may answer."""
        lent = {LENT} if self.may_spill else set()
        return {HERE} if is_outside and self.is_local else {HERE, ELSEWHERE} | lent

    @property
    def told(self) -> set[str]:
        """Annotations that have no effect."""
        uneven = (Scheduler.SOURCE_HASH, Scheduler.LOWEST_LATENCY)
        cannot = {
            words.REBALANCE: self.given[words.SCHEDULER] in uneven,
            words.DSR: self.is_local,
            words.SPILL_AT: not self.has_backup,
        }
        return {name for name, is_told in cannot.items() if is_told and name in self.given}


def pod_manifest(name: str, version: str) -> dict[str, object]:
    metadata = {"name": name, "namespace": "default", "labels": {"version": version}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}


@pytest.fixture(scope="module")
def cluster(own_lab: Lab, tmp_path_factory) -> Iterator[Cluster]:
    logs = tmp_path_factory.mktemp("pairs")
    options = ["--dsr", DEFAULTS.dsr, "--maglev-table-size", str(DEFAULTS.table_size)]
    with started(own_lab, logs, options, nodes=[NODE]) as cluster, ExitStack() as stack:
        name = "pods.yaml"
        stack.callback(own_lab.remove_manifests, name)
        own_lab.write_manifests([pod_manifest(*each) for each in LABELS.items()], name)
        yield cluster


def planned(cluster: Cluster) -> dict[FrontendKey, Frontend]:
    node = cluster.lab.node(NODE)
    changes = Changes(node.name, defaults=DEFAULTS)
    for path in sorted(node.manifests.glob("[!.]*")):
        for item in parse_manifest(path.name, path.read_bytes()).objects.values():
            changes.set(item)
    changes.take()
    return {each.key: each for name in changes.names() for each in changes.plan(name)}


def wait_in_force(cluster: Cluster) -> None:
    """Return when the kernel has everything that the model wants, before any connection."""
    wanted = planned(cluster)

    def differing() -> list[str]:
        found = read_frontends(pinned_maps(cluster.lab.node(NODE)))
        kernel = {each.frontend.key: each.frontend for each in found}
        keys = {*wanted, *kernel}
        return [line for key in keys for line in differences(kernel.get(key), wanted.get(key))]

    wait_until(lambda: not differing(), "kernel and model agree")


@pytest.fixture(scope="module")
def walked(cluster: Cluster) -> list[Walked]:
    """Served from a pod of each node, beside the backup of some."""
    lab = cluster.lab
    spare = cluster.new("ClusterIP")
    spare = ServiceSpec(SPARE.name, spare.number)
    cluster.serve(spare, [lab.pod(LENT)], wait=False)
    found = []
    for values in covering(VALUES, SEED):
        given = {name: text for name, text in values.items() if text}
        policy = "Local" if words.NO_LOCAL_ENDPOINT in given else "Cluster"
        short = {name.removeprefix(words.PREFIX): text for name, text in given.items()}
        spec = cluster.new("LoadBalancer", short, externalTrafficPolicy=policy)
        cluster.serve(spec, [lab.pod(HERE), lab.pod(ELSEWHERE)], wait=False)
        found.append(Walked(spec, given))
    wait_in_force(cluster)
    assert len(found) <= MOST_SERVICES
    return found


def inside(cluster: Cluster, spec: ServiceSpec) -> list[Attempt]:
    pod = cluster.lab.pod(INSIDE)
    return [
        Attempt(pod, address, spec.port, protocol)
        for address in cluster.cluster_ips(spec)
        for protocol in PROTOCOLS
    ]


def outside(cluster: Cluster, spec: ServiceSpec) -> list[Attempt]:
    lab = cluster.lab
    return [
        Attempt(lab.client, *place, protocol)
        for version in cluster.versions
        for place in (
            (address_of(lab.node(NODE), version), spec.node_port),
            (lab.ingress_ip(spec.number, version), spec.port),
        )
        for protocol in PROTOCOLS
    ]


def wrong(expected: Mapping[Attempt, set[str]], times: int) -> dict[object, set[str]]:
    """The answers of others than those expected."""
    found = results(expected, times=times)
    return {each.key: found[each.key] for each in expected if not found[each.key] <= expected[each]}


def test_all_are_served_to_pods_and_outside(cluster: Cluster, walked: list[Walked]):
    expected: dict[Attempt, set[str]] = {}
    for each in walked:
        expected |= dict.fromkeys(inside(cluster, each.spec), each.pods(is_outside=False))
        expected |= dict.fromkeys(outside(cluster, each.spec), each.pods(is_outside=True))
    assert wrong(expected, times=8) == {}


def test_only_what_has_no_effect_is_told(cluster: Cluster, walked: list[Walked]):
    lines = status(cluster.lab.node(NODE))["agent"]["misconfigured"]
    expected = {(each.spec.name, name) for each in walked for name in each.told}
    found = {
        (each.spec.name, name)
        for each in walked
        for name in EFFECTS
        for line in lines
        if f"/{each.spec.name}:" in line and f"{name} has no effect" in line
    }
    assert (found, len(lines)) == (expected, len(expected))


def test_without_endpoints_backups_take_over_and_others_refuse(
    cluster: Cluster, walked: list[Walked]
):
    for each in walked:
        cluster.serve(each.spec, wait=False)
    wait_in_force(cluster)
    expected: dict[Attempt, set[str]] = {}
    for each in walked:
        ways = inside(cluster, each.spec)
        ways += [] if each.is_local else outside(cluster, each.spec)
        expected |= dict.fromkeys(ways, {LENT} if each.has_backup else {REFUSED})
    assert wrong(expected, times=2) == {}


def test_the_agent_has_nothing_to_complain_about(cluster: Cluster, walked: list[Walked]):
    agent = cluster.agents[NODE]
    assert agent.is_running()
    found = status(agent.node)["agent"]
    assert (found["healthy"], found["in_sync"]) == (True, True)
    troubles = ("attach_errors", "source_errors", "health_check_errors", "refused", "conflicts")
    assert [found[each] for each in troubles if found[each]] == []
    lines = agent.log.read_text().splitlines()
    loud = [each for each in lines if "level=error" in each or "level=warning" in each]
    assert [each for each in loud if not EXPECTED.search(each)] == []
