# SPDX-License-Identifier: Apache-2.0
"""Connections to endpoints that refuse or do not reply go to another endpoint: none fails."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain
from typing import Any

import pytest

from ebpflb.lab import Member
from ebpflb.lab.ask import Question, ask_at_once
from ebpflb.lab.manifests import ServiceSpec
from ebpflb.lab.offloads import wire
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb
from tests.e2e.harness.questions import PATIENCE, REFUSED, SILENT
from tests.e2e.steps.broken import broken

# Three ways with so many make a thousand.
MANY = 336
AT_ONCE = 42
SILENT_POD, REFUSING_POD = "pod-1-2", "pod-2-1"


@pytest.fixture(scope="module", params=["off", "native"], ids=["tc", "xdp"])
def cluster(own_lab, tmp_path_factory, request) -> Iterator[Cluster]:
    wire(own_lab)
    logs = tmp_path_factory.mktemp("retry")
    options = ("--xdp", request.param, "--dsr", "off", "--ejection", "off")
    with started(own_lab, logs, options, nodes=["node1"]) as cluster:
        yield cluster


@contextmanager
def serving(
    cluster: Cluster, pods: Sequence[Member], annotations: dict[str, str], **spec: Any
) -> Iterator[ServiceSpec]:
    made = cluster.serve(cluster.new(annotations=annotations, **spec), pods)
    yield made
    cluster.remove(made)


@contextmanager
def half_broken(cluster: Cluster) -> Iterator[None]:
    """Of four pods one does not reply, and one refuses."""
    with ExitStack() as stack:
        stack.enter_context(broken(cluster.lab.pod(SILENT_POD), SILENT))
        stack.enter_context(broken(cluster.lab.pod(REFUSING_POD), REFUSED))
        yield


def asked(
    cluster: Cluster, spec: ServiceSpec, source: str, times: int, timeout: float = PATIENCE
) -> Counter[str]:
    """How many connections each pod answers in either family, and how many fail how."""
    lab = cluster.lab
    questions = []
    for version in cluster.versions:
        if source == "client":
            place = address_of(lab.node("node1"), version), spec.node_port
        else:
            place = lab.cluster_ip(spec.number, version), spec.port
        each = times // len(cluster.versions) // AT_ONCE
        questions += [Question(*place, "tcp", each, timeout)] * AT_ONCE
    found = ask_at_once(lab.member(source), questions)
    return Counter(each.get("pod") or each["error"] for each in chain(*found))


def retried(cluster: Cluster, spec: ServiceSpec) -> set[str]:
    """The pods that connections have left, by flow records."""
    flows = ("flows", "--service", f"default/{spec.name}", "-o", "jsonl", "--last", str(2 * MANY))
    lines = ebpflb(cluster.lab.node("node1"), *flows).stdout.splitlines()
    found = [json.loads(line) for line in lines]
    return {
        each["backend"]["pod"].removeprefix("default/")
        for each in found
        if each.get("ended") == "retried"
    }


@pytest.mark.parametrize("source", ["pod-1-1", "client"])
def test_no_connection_fails(cluster, source):
    with (
        serving(cluster, cluster.lab.pods, {"retry": "true"}) as spec,
        half_broken(cluster),
    ):
        found = asked(cluster, spec, source, MANY)
        assert set(found) == {"pod-1-1", "pod-2-2"}
        assert found.total() == MANY
        assert retried(cluster, spec) >= {SILENT_POD, REFUSING_POD}


def test_no_connection_fails_under_policy_local(cluster):
    pods = cluster.lab.pods_on("node1")
    with (
        serving(cluster, pods, {"retry": "true"}, externalTrafficPolicy="Local") as spec,
        broken(cluster.lab.pod(SILENT_POD), SILENT),
    ):
        found = asked(cluster, spec, "client", MANY)
        assert found == {"pod-1-1": MANY}


@pytest.mark.parametrize("source", ["pod-1-1", "client"])
def test_without_the_annotation_they_fail(cluster, source):
    with serving(cluster, cluster.lab.pods, {}) as spec, half_broken(cluster):
        found = asked(cluster, spec, source, 2 * AT_ONCE, 1.5)
        assert found[SILENT]
        assert found[REFUSED]


def test_a_process_of_the_node_connects_at_its_socket_and_is_not_retried(cluster):
    with serving(cluster, cluster.lab.pods, {"retry": "true"}) as spec, half_broken(cluster):
        assert asked(cluster, spec, "node1", 2 * AT_ONCE, 1.5)[REFUSED]
        target = f"{cluster.lab.cluster_ip(spec.number)}:{spec.port}"
        told = ebpflb(cluster.lab.node("node1"), "explain", "host", target).stdout
        assert "RETRY not for this client" in " ".join(told.split())
