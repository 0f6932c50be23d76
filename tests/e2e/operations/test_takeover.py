# SPDX-License-Identifier: Apache-2.0
"""A node moves from kube-proxy's rules to ebpflb: no connection breaks, and ebpflb gets new
ones.
"""

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple
from ebpflb.lab import Lab, LabNode, Member
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import ebpflb, error_line, status
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.questions import PROTOCOLS, answers, differing, everywhere, fate
from tests.e2e.harness.sockets import connected, exchange, opened
from tests.e2e.harness.waiting import wait_until
from tests.e2e.operations.kube_proxy_rules import (
    POD_PORT,
    SPEC,
    VERSIONS,
    few_source_ports,
    remove_rules,
    write_rules,
)

PLACES = ("legacy", "nft", "nftables")


def reservations(maps: MapSet) -> list[LbTuple]:
    """The ports reserved for another NAT."""
    offset = LbConntrack.hook.offset
    entries = maps["lb_conntrack"].items()
    return [LbTuple.from_buffer_copy(key) for key, value in entries if not value[offset]]


@contextmanager
def connected_from(node: LabNode, port: int, pod: Member, version: int) -> Iterator[socket.socket]:
    """A process of the node that has bound a port and connected directly to the pod."""
    with opened(node, version) as made:
        made.bind((address_of(node, version), port))
        made.connect((address_of(pod, version), POD_PORT))
        yield made


def everybody(lab: Lab) -> Iterator[tuple[Member, str, int]]:
    """Clients and addresses: all paths through the first node."""
    node = lab.node("node1")
    for version in VERSIONS:
        vip = lab.cluster_ip(SPEC.number, version)
        yield lab.pod("pod-1-2"), vip, SPEC.port
        yield node, vip, SPEC.port
        yield lab.client, address_of(node, version), SPEC.node_port


@contextmanager
def kube_proxy_running(node: LabNode, directory: Path) -> Iterator[int]:
    """A process of that name on the node."""
    program = directory / "kube-proxy"
    shutil.copy(str(shutil.which("sleep")), program)
    process = node.popen([str(program), "infinity"])
    try:
        wait_until(lambda: Path(f"/proc/{process.pid}/comm").read_text() == "kube-proxy\n", "exec")
        yield process.pid
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def agent(own_lab, tmp_path) -> Iterator[Callable[[], Cluster]]:
    """Start an agent on the first node."""
    with ExitStack() as stack:
        stack.callback(ebpflb, own_lab.node("node1"), "cleanup")
        yield lambda: stack.enter_context(started(own_lab, tmp_path, nodes=["node1"]))


@pytest.fixture(params=PLACES)
def place(request, own_lab) -> Iterator[str]:
    """Where kube-proxy's rules are. Everything in nftables and iptables is deleted afterwards."""
    yield request.param
    remove_rules(own_lab.node("node1"))


@pytest.mark.parametrize(
    ("place", "pod_name"),
    [*((place, "pod-2-1") for place in PLACES), ("nftables", "pod-1-1")],
    indirect=["place"],
)
def test_connections_go_on_and_new_ones_are_answered(own_lab, place, agent, pod_name):
    node, pod = own_lab.node("node1"), own_lab.pod(pod_name)
    write_rules(own_lab, place, pod)
    with ExitStack() as stack:
        old = [stack.enter_context(connected(*each)) for each in everybody(own_lab)]
        assert {exchange(connection) for connection in old} == {pod_name}
        cluster = agent()
        cluster.serve(SPEC, [pod])
        assert {exchange(connection) for connection in old} == {pod_name}
        done = ebpflb(node, "takeover", "--wait", "60", "-o", "json")
        removed = json.loads(done.stdout)["removed"]
        assert removed["iptables" if place != "nftables" else "nftables"], done
        assert {exchange(connection) for connection in old} == {pod_name}
        again = ebpflb(node, "takeover")
        assert (again.returncode, again.stdout.splitlines()[0]) == (0, "nothing to remove")
        assert {exchange(connection) for connection in old} == {pod_name}
    for protocol in PROTOCOLS:
        assert {fate(*each, protocol) for each in everybody(own_lab)} == {pod_name}
    assert differing(everywhere(cluster, SPEC), [pod]) == {}


def is_said_of_unknown_connections(node: LabNode, text: str) -> bool:
    return str(status(node)["agent"]["unknown_connections"]["why"]).startswith(text)


@pytest.mark.parametrize("place", ["nftables"], indirect=True)
def test_old_connections_go_on_until_none_is_left_and_then_unknown_ones_are_reset(
    own_lab, place, agent
):
    node, pod = own_lab.node("node1"), own_lab.pod("pod-2-1")
    write_rules(own_lab, place, pod)
    with ExitStack() as stack:
        old = [stack.enter_context(connected(*each)) for each in everybody(own_lab)]
        cluster = agent()
        cluster.serve(SPEC, [pod])
        says = partial(is_said_of_unknown_connections, node)
        wait_until(lambda: says("kube-proxy's rules are here"), "its rules are seen")
        ebpflb(node, "takeover", "--wait", "60")
        wait_until(lambda: says("netfilter still translates"), "its connections are seen")
        assert {exchange(connection) for connection in old} == {pod.name}
    cluster.agents["node1"].kill()
    cluster.agents["node1"].start()
    cluster.agents["node1"].wait_in_sync()
    wait_until(lambda: says("nothing else translates"), "nothing of it is seen")
    write_rules(own_lab, place, pod)
    wait_until(lambda: says("kube-proxy's rules are here"), "its rules are seen again")


@pytest.fixture
def few_ports(own_lab) -> Iterator[tuple[int, int]]:
    """The first node has only these ports for masquerading, by kube-proxy's rules or by ebpflb."""
    with few_source_ports(own_lab.node("node1")) as ports:
        yield ports


@pytest.mark.parametrize("place", ["nftables"], indirect=True)
def test_new_connections_leave_the_ports_of_old_ones_alone(own_lab, place, agent, few_ports):
    node, pod = own_lab.node("node1"), own_lab.pod("pod-2-1")
    first, last = few_ports
    write_rules(own_lab, place, pod, masquerade=f"masquerade to :{first}-{last} fully-random")
    targets = [(own_lab.client, address_of(node, v), SPEC.node_port) for v in VERSIONS]
    with ExitStack() as stack:
        old = [stack.enter_context(connected_from(node, first, pod, each)) for each in VERSIONS]
        old += [stack.enter_context(connected(*each)) for each in targets for _ in range(8)]
        assert {exchange(connection) for connection in old} == {"pod-2-1"}
        cluster = agent()
        cluster.serve(SPEC, [pod])
        maps = pinned_maps(node)
        assert len(reservations(maps)) == len(old)
        for target in targets:
            assert {each.get("pod") for each in answers(*target, times=30)} == {"pod-2-1"}
            assert {exchange(connection) for connection in old} == {"pod-2-1"}
        assert len(reservations(maps)) == len(old)
    cluster.agents["node1"].kill()
    cluster.agents["node1"].start()
    cluster.agents["node1"].wait_in_sync()
    assert reservations(maps) == []


@pytest.mark.parametrize("place", ["nft"], indirect=True)
def test_it_is_refused_until_all_is_ready(own_lab, place, agent, tmp_path):
    node = own_lab.node("node1")
    write_rules(own_lab, place, own_lab.pod("pod-1-1"))
    first = (
        "nftables table ip kube-proxy"
        if place == "nftables"
        else (f"iptables-{place} table nat: 8 chains, 3 jumps to them")
    )
    assert "no agent answers at" in error_line(ebpflb(node, "takeover"))
    cluster = agent()
    with kube_proxy_running(node, tmp_path) as pid:
        assert f"kube-proxy is running here (pid {pid})" in error_line(ebpflb(node, "takeover"))
        shown = ebpflb(node, "takeover", "--dry-run").stdout
        assert f"would remove {first}\n" in shown
        assert f"would be refused: kube-proxy is running here (pid {pid})" in shown
    assert f"removed {first}\n" in ebpflb(node, "takeover").stdout
    cluster.agents["node1"].kill()
    assert "no agent answers at" in error_line(ebpflb(node, "takeover"))
    assert ebpflb(node, "takeover", "--force").stdout.splitlines()[0] == "nothing to remove"
