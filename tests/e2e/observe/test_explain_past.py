# SPDX-License-Identifier: Apache-2.0
"""`ebpflb explain --at`: what a node served at a moment of the past, also after a restart."""

import json
import time
from functools import partial
from typing import Any

import pytest

from ebpflb.config.moment import rfc3339_ns
from ebpflb.lab import LabNode
from tests.e2e.harness.cluster import address_of
from tests.e2e.harness.command import ebpflb, error_line
from tests.e2e.harness.questions import PROTOCOLS, REFUSED, fate
from tests.e2e.harness.waiting import wait_until, wait_until_equal
from tests.e2e.steps.broken import broken
from tests.e2e.steps.explained import place, socket_of, source_of

PORT = 80


def now() -> str:
    return rfc3339_ns(time.time_ns())


def told(node: LabNode, at: str, source: str, target: str) -> dict[str, Any]:
    done = ebpflb(node, "explain", "--at", at, source, target, "-o", "json", **socket_of(node))
    assert done.stdout, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def addresses(found: dict[str, Any]) -> list[str]:
    return sorted(each["address"] for each in found["kernel"]["backends"])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_moment_has_the_endpoints_that_served_then(cluster, lab, protocol):
    node, pods = lab.node("node1"), lab.pods
    spec = cluster.serve(cluster.new(), pods)
    moments = {now(): list(pods)}
    for count in (2, 1, 0):
        cluster.serve(spec, pods[:count])
        moments[now()] = list(pods[:count])
    # What was in force last may still have to be written.
    for version in cluster.versions:
        target = place(lab.cluster_ip(spec.number, version), PORT, protocol)
        last = partial(_served, node, [*moments][-1], target)
        wait_until_equal(last, [])
        for at, some in moments.items():
            found = told(node, at, source_of(lab.pod("pod-1-1"), version), target)
            assert addresses(found) == sorted(address_of(pod, version) for pod in some)
            assert found["verdict"] == ("translated" if some else "refused")
            assert found["target"]["service"] == f"default/{spec.name}"
            assert found["since"] <= found["at"]


def _served(node: LabNode, at: str, target: str) -> list[str]:
    return addresses(told(node, at, "host", target))


def test_an_endpoint_that_failed_then_is_told_when_it_works_again(cluster, lab):
    node, client, dead = lab.node("node1"), lab.pod("pod-1-1"), lab.pod("pod-2-1")
    for version in cluster.versions:
        spec = cluster.serve(cluster.new(), lab.pods)
        before = now()
        service = lab.cluster_ip(spec.number, version)
        question = source_of(client, version), place(service, PORT)
        with broken(dead, REFUSED):
            wait_until_equal(partial(fate, client, service, PORT, seconds=0.5), REFUSED)
            wait_until_equal(partial(_outcome, node, *question), "partly")
            during = now()
        wait_until_equal(partial(fate, client, service, PORT), dead.name)
        wait_until_equal(partial(_outcome, node, *question), "works")
        assert told(node, during, *question)["outcome"] == "partly"
        assert told(node, before, *question)["outcome"] == "works"


def _outcome(node: LabNode, source: str, target: str) -> str:
    """Of this moment."""
    return str(told(node, now(), source, target)["outcome"])


def test_it_is_found_after_a_restart_as_what_the_programs_served_meanwhile(cluster, lab):
    node, pods = lab.node("node1"), lab.pods
    agent = cluster.agents[node.name]
    spec = cluster.serve(cluster.new(), pods)
    first = now()
    # An agent that is killed may not have written what was in force a moment ago.
    target = place(lab.cluster_ip(spec.number, 4), PORT)
    wait_until(lambda: _served(node, first, target), "it is written")
    agent.kill()
    cluster.serve(spec, pods[:1], wait=False)
    without = now()
    agent.start()
    agent.wait_in_sync()
    after = now()
    for version in cluster.versions:
        target = place(lab.cluster_ip(spec.number, version), PORT)
        every = sorted(address_of(pod, version) for pod in pods)
        wait_until_equal(partial(_served, node, after, target), [address_of(pods[0], version)])
        assert _served(node, first, target) == every
        assert _served(node, without, target) == every


def test_what_cannot_be_told_is_one_line(cluster, lab):
    node, spec = lab.node("node1"), cluster.serve(cluster.new(), lab.pods)
    ask = partial(ebpflb, node, "explain", "host", f"default/{spec.name}", **socket_of(node))
    assert "it is kept since" in error_line(ask("--at", "23h"))
    assert "is in the future" in error_line(ask("--at", rfc3339_ns(time.time_ns() + 10**12)))
    assert "want a time" in error_line(ask("--at", "yesterday"))
    nobody = ebpflb(node, "explain", "host", "default/nobody:80", "--at", now(), **socket_of(node))
    assert "there was no Service default/nobody then" in error_line(nobody)
