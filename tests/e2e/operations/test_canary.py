# SPDX-License-Identifier: Apache-2.0
"""A Service moves from kube-proxy's rules to ebpflb and back, and no flow breaks."""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from socket import socket
from typing import Any

import pytest

from ebpflb.dataplane.layout.enums import CtFlag
from ebpflb.dataplane.layout.structs import LbConntrack
from ebpflb.lab import Lab, Member
from ebpflb.lab.member import LoadRun
from ebpflb.model.selection import PROXY_LABEL
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import PROGRAM, ebpflb, error_line
from tests.e2e.harness.in_force import offered, pinned_maps
from tests.e2e.harness.questions import answers
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.operations.kube_proxy_rules import (
    SPEC,
    VERSIONS,
    few_source_ports,
    remove_rules,
    write_rules,
)

# The Service's backend; clients outside reach it by masquerade.
POD = "pod-2-1"
SELECTOR = "canary=yes"
LEFT_OUT = r"(\d+) other Services are left to kube-proxy"
# A tenth of the ports.
_HELD = 100


@pytest.fixture
def lab(own_lab: Lab) -> Iterator[Lab]:
    """With kube-proxy's rules, and few ports to masquerade with for each of the two."""
    node = own_lab.node("node1")
    with few_source_ports(node, 2047) as (first, last):
        masquerade = f"masquerade to :{first}-{last} fully-random"
        write_rules(own_lab, "nftables", own_lab.pod(POD), masquerade)
        yield own_lab
        ebpflb(node, "cleanup")
        remove_rules(node)


@pytest.fixture
def canary(lab: Lab, tmp_path) -> Iterator[Cluster]:
    """An agent on the first node that serves the labelled Services."""
    with started(lab, tmp_path, [f"--service-selector={SELECTOR}"], ["node1"]) as cluster:
        label(cluster, "no")
        yield cluster


@pytest.fixture
def through_the_stack(lab: Lab, tmp_path) -> Iterator[Cluster]:
    """The same, where the kernel routes masqueraded packets."""
    options = [f"--service-selector={SELECTOR}", "--forwarding=stack"]
    with started(lab, tmp_path, options, ["node1"]) as cluster:
        label(cluster, "yes")
        yield cluster


def label(cluster: Cluster, value: str, name: str = "canary", ours: str = "yes") -> None:
    """Label the Service; return when that is in force. ebpflb serves it with that value."""
    objects = cluster.lab.service(SPEC, [cluster.lab.pod(POD)])
    objects[0]["metadata"]["labels"] = {name: value}
    cluster.write(SPEC, objects, wait=False)
    node = cluster.lab.node("node1")
    wait_until(lambda: bool(offered(node)) is (value == ours), f"{name}={value}")


def clients(lab: Lab) -> Iterator[tuple[Member, str, int]]:
    """All ways through the first node."""
    node = lab.node("node1")
    for version in VERSIONS:
        yield lab.pod("pod-1-1"), lab.cluster_ip(SPEC.number, version), SPEC.port
        yield node, lab.cluster_ip(SPEC.number, version), SPEC.port
        yield lab.client, address_of(node, version), SPEC.node_port


def opened(stack: ExitStack, lab: Lab, times: int, protocol: str = "tcp") -> Sequence[socket]:
    """Connections that stay open."""
    ways = [way for way in clients(lab) for _ in range(times)]
    return [stack.enter_context(connected(*way, protocol)) for way in ways]


def hold(stack: ExitStack, lab: Lab) -> list[LoadRun]:
    """Connections from outside with exchanges all the time."""
    talk: dict[str, Any] = {"exchanges": 0, "interval": 1.0, "timeout": 20.0}
    return [
        stack.enter_context(way[0].start_load(*way[1:], count=_HELD, workers=_HELD, **talk))
        for way in clients(lab)
        if way[0] is lab.client
    ]


def test_connections_go_on_and_neither_proxy_takes_the_others_ports(canary: Cluster):
    lab, new = canary.lab, set[str]()
    with ExitStack() as stack:
        flows = [*opened(stack, lab, 1)]
        held = hold(stack, lab)
        for value in ("yes", "no", "yes"):
            label(canary, value)
            for way in clients(lab):
                new |= {each.get("pod") or each["error"] for each in answers(*way, times=40)}
            held += hold(stack, lab)
            flows += opened(stack, lab, 1)
            assert {exchange(each) for each in flows} == {POD}
        assert new == {POD}
        assert [each.stop().errors for each in held] == [{}] * len(held)


def test_the_standard_label_says_who_serves_a_service(lab: Lab, tmp_path):
    name = "ebpflb"
    with started(lab, tmp_path, [f"--service-proxy-name={name}"], ["node1"]) as cluster:
        for value in (name, "other", name):
            label(cluster, value, PROXY_LABEL, name)
            found = [each for way in clients(lab) for each in answers(*way, times=4)]
            assert {each.get("pod") or each["error"] for each in found} == {POD}
        assert f"only Services selected by --service-proxy-name '{name}'" in str(
            ebpflb(lab.node("node1"), "status").stdout
        )


def test_kube_proxy_does_not_take_the_ports_of_what_a_drain_waits_for(canary: Cluster):
    lab, node = canary.lab, canary.lab.node("node1")
    label(canary, "yes")
    with ExitStack() as stack:
        held = hold(stack, lab)
        assert canary.agents["node1"].stop() == 0
        with node.popen([*PROGRAM, "cleanup", "--drain=60"]) as cleanup:
            wait_until(lambda: not offered(node), "left to kube-proxy")
            outside = [way for way in clients(lab) if way[0] is lab.client]
            found = [each for way in outside for each in answers(*way, times=40)]
            assert {each.get("pod") or each["error"] for each in found} == {POD}
            assert cleanup.poll() is None
            assert [each.stop().errors for each in held] == [{}] * len(held)
            assert cleanup.wait(30) == 0


def test_udp_flows_keep_their_pod_when_their_service_moves_back(canary: Cluster):
    label(canary, "yes")
    with ExitStack() as stack:
        held = opened(stack, canary.lab, 2, "udp")
        assert {exchange(each) for each in held} == {POD}
        label(canary, "no")
        assert {exchange(each) for each in held} == {POD}
        agent = canary.agents["node1"]
        agent.kill()
        agent.start()
        agent.wait_in_sync()
        assert {exchange(each) for each in held} == {POD}


def test_kube_proxy_does_not_masquerade_what_an_agent_has_masqueraded(through_the_stack: Cluster):
    lab = through_the_stack.lab
    with ExitStack() as stack:
        held = opened(stack, lab, 1)
        assert {exchange(each) for each in held} == {POD}
        # Only a flow whose replies are seen becomes established.
        table = pinned_maps(lab.node("node1"))["lb_conntrack"]
        flows = [LbConntrack.from_buffer_copy(value) for _, value in table.items()]
        masqueraded = [each for each in flows if each.flags & CtFlag.LB_CT_SNAT]
        assert len(masqueraded) == 2 * len(VERSIONS)


def test_what_is_not_selected_is_left_alone_and_said_so(canary: Cluster):
    node = canary.lab.node("node1")
    for way in clients(canary.lab):
        assert {each.get("pod") for each in answers(*way, times=2)} == {POD}
    told = ebpflb(node, "explain", "host", f"default/{SPEC.name}").stdout
    assert f"left to kube-proxy: not selected by --service-selector '{SELECTOR}'" in told
    assert "remove that option" in error_line(ebpflb(node, "takeover"))
    found = ebpflb(node, "doctor").stdout
    assert f"serves what --service-selector '{SELECTOR}' leaves out" in found
    (before,) = re.findall(LEFT_OUT, ebpflb(node, "status").stdout)
    label(canary, "yes")
    (after,) = re.findall(LEFT_OUT, ebpflb(node, "status").stdout)
    assert int(before) - int(after) == 1
