# SPDX-License-Identifier: Apache-2.0
"""Weights with real connections: a canary gets its share, and a change costs no connection."""

import json
from collections import Counter
from copy import deepcopy
from dataclasses import replace

import pytest

from ebpflb.lab import Member
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.words.annotations import SLICE_WEIGHT
from ebpflb.words.scheduler import Scheduler
from tests.bpf.services.chance import is_likely
from tests.e2e.harness.cluster import Cluster
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import PROTOCOLS, answers, pods_at
from tests.e2e.harness.sockets import connected, exchange

TIMES = 150
OLD, NEW = ("pod-1-1", "pod-2-1"), ("pod-1-2", "pod-2-2")


def weigh(
    cluster: Cluster, spec: ServiceSpec, old: int, new: int, scheduler: str = Scheduler.RANDOM
) -> ServiceSpec:
    """Two versions in slices of their own, of these weights; return when that is in force."""
    annotated = replace(spec, annotations={"scheduler": str(scheduler)})
    service, *slices = cluster.lab.service(annotated, cluster.lab.pods)
    objects = [service]
    for names, weight in ((OLD, old), (NEW, new)):
        addresses = {each for name in names for each in cluster.lab.pod(name).addresses}
        for piece in deepcopy(slices):
            piece["metadata"]["name"] += f"-{names[0]}"
            piece["metadata"]["annotations"] = {SLICE_WEIGHT: str(weight)}
            piece["endpoints"] = [
                each for each in piece["endpoints"] if each["addresses"][0] in addresses
            ]
            objects.append(piece)
    cluster.write(spec, objects)
    return spec


def of_canary(way: tuple[Member, str, int], protocol: str) -> int:
    """How many of new connections reach the new version."""
    counts = Counter(each["pod"] for each in answers(*way, protocol, TIMES))
    return sum(counts[name] for name in NEW)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_canary_gets_its_share_and_then_everything(cluster, protocol):
    spec = weigh(cluster, cluster.new(), 90, 10)
    for way in cluster.ways(spec):
        assert is_likely(of_canary(way, protocol), TIMES, 0.1), way
    weigh(cluster, spec, 0, 100)
    for way in cluster.ways(spec):
        assert of_canary(way, protocol) == TIMES, way


# How long a pod takes to answer decides as well; the default has tests of its own.
OTHERS = [each for each in Scheduler if each not in (Scheduler.RANDOM, Scheduler.LOWEST_LATENCY)]


@pytest.mark.parametrize("scheduler", OTHERS)
def test_by_every_scheduler(cluster, scheduler):
    spec = weigh(cluster, cluster.new(), 75, 25, scheduler)
    for way in cluster.ways(spec):
        if scheduler is Scheduler.SOURCE_HASH:
            assert of_canary(way, "tcp") in (0, TIMES)
        else:
            assert is_likely(of_canary(way, "tcp"), TIMES, 0.25), way


def test_a_change_of_weights_keeps_every_open_connection(cluster, lab):
    spec = weigh(cluster, cluster.new(), 90, 10)
    with none_fails(cluster, spec, held=True) as loads:
        for weights in ((10, 90), (0, 100), (100, 0), (50, 50)):
            weigh(cluster, spec, *weights)
            loads.go_on()
        loads.wait_for(lab.pod(NEW[0]))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_with_weight_0_what_is_open_stays(cluster, lab, protocol):
    spec = weigh(cluster, cluster.new(), 100, 0)
    for member, address, port in cluster.ways(spec):
        with connected(member, address, port, protocol) as made:
            first = exchange(made)
            assert first in OLD
            weigh(cluster, spec, 0, 100)
            assert pods_at(member, address, port, protocol) <= {*NEW}
            assert exchange(made) == first
        weigh(cluster, spec, 100, 0)


def test_tools_show_the_shares(cluster, lab):
    spec = weigh(cluster, cluster.new(), 90, 10)
    node = lab.node("node1")
    shown = ebpflb(node, "services", "--service", f"default/{spec.name}").stdout
    assert (shown.count("45.0%"), shown.count("5.0%") - shown.count("45.0%")) == (16, 16)
    place = f"{lab.cluster_ip(spec.number, 4)}:{spec.port}"
    told = json.loads(ebpflb(node, "explain", "host", place, "-o", "json").stdout)
    assert sorted(each["chance"] for each in told["kernel"]["backends"]) == [0.05, 0.05, 0.45, 0.45]
    assert told["agree"]
    weigh(cluster, spec, 0, 0)
    (line,) = json.loads(ebpflb(node, "status", "-o", "json").stdout)["agent"]["misconfigured"]
    assert "the weights have no effect" in line
    weigh(cluster, spec, 0, 1)
    told = json.loads(ebpflb(node, "explain", "host", place, "-o", "json").stdout)
    why = [each["why"] for each in told["model"]["endpoints"] if not each["candidate"]]
    assert why == ["ready, but its weight is 0"] * 2
