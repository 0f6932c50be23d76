# SPDX-License-Identifier: Apache-2.0
"""Attach points: tcx or clsact, with or without socket hooks, devices that are added and
removed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from ebpflb.lab import Lab, LabNode, Member, namespaces
from ebpflb.lab.layout import Ranges, Seat, SeatKind
from ebpflb.lab.network import sysctls
from tests.e2e.harness.cluster import Cluster, address_of, started
from tests.e2e.harness.command import status
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.loads import none_fails
from tests.e2e.harness.questions import (
    PROTOCOLS,
    REFUSED,
    answers,
    differing,
    everywhere,
    fate,
    names,
    pods_at,
)
from tests.e2e.harness.tunnel import DEVICE, tunnel
from tests.e2e.harness.waiting import wait_until
from tests.own import own_name

PORT = 80
WAYS = ("tcx", "clsact")
NEW_POD = Seat(SeatKind.POD, "pod-1-9", node=1, number=9)
NEW_DEVICE = "veth-1-9"
TUNNEL = {4: ("192.0.2.1", "192.0.2.2", 24), 6: ("2001:db8::1", "2001:db8::2", 64)}


@contextmanager
def serving(lab: Lab, logs: Path, *options: str) -> Iterator[Cluster]:
    """An agent on the first node; a later one finds its pins."""
    with started(lab, logs, options, ["node1"]) as cluster:
        yield cluster


def hooks_of(node: LabNode, device: str) -> set[str]:
    """ebpflb's hooks at a device."""
    hooks = status(node)["loaded"]["hooks"]
    return {hook["hook"] for hook in hooks if hook["place"] == device and hook["current"]}


def both(way: str) -> set[str]:
    """Hooks in both directions."""
    return {f"{way} ingress", f"{way} egress"}


@contextmanager
def new_pod(lab: Lab) -> Iterator[Member]:
    """Another pod on the first node, connected like those of the CNI plugin ptp; runs nothing."""
    node = lab.node("node1")
    addresses = lab.layout.addresses(NEW_POD)
    name = own_name(NEW_POD.name)
    made = namespaces.create(name)
    cgroup = node.cgroup / NEW_POD.name
    try:
        cgroup.mkdir()
        pod = Member(
            lab.name,
            SeatKind.POD,
            NEW_POD.name,
            "node1",
            namespaces.path_of(name),
            cgroup,
            addresses,
        )
        connect(lab, node, pod)
        yield pod
    finally:
        namespaces.delete(name, made)
        cgroup.rmdir()


def connect(lab: Lab, node: LabNode, pod: Member) -> None:
    """A veth between the node and the pod, with routes on both sides."""
    with pod.entered():
        namespaces.write_sysctls(sysctls(NEW_POD, lab.config))
    outside = [f"link add {NEW_DEVICE} type veth peer name eth0 netns {pod.namespace.name}"]
    outside += [f"link set {NEW_DEVICE} up"]
    inside = ["link set lo up", "link set eth0 up"]
    for ranges, address in zip(lab.layout.ranges, pod.addresses, strict=True):
        own, gateway = f"{address}/{ranges.host_bits}", ranges.pod_gateway(1)
        outside += [f"addr add {gateway}/{ranges.host_bits} dev {NEW_DEVICE}"]
        outside += [f"route add {own} dev {NEW_DEVICE}"]
        inside += [f"addr add {own} dev eth0 nodad" if ":" in own else f"addr add {own} dev eth0"]
        inside += [f"route add {gateway}/{ranges.host_bits} dev eth0"]
        inside += [f"route add default via {gateway} dev eth0"]
    node.exec(["ip", "-batch", "-"], input="\n".join(outside))
    pod.exec(["ip", "-batch", "-"], input="\n".join(inside))


@pytest.mark.parametrize("way", WAYS)
def test_both_ways_to_attach_serve(own_lab, tmp_path, way):
    with serving(own_lab, tmp_path, "--attach", way) as cluster:
        spec = cluster.serve(cluster.new(), own_lab.pods)
        node = own_lab.node("node1")
        assert [hooks_of(node, device) for device in ("eth0", "veth-1-1")] == [both(way)] * 2
        assert differing(everywhere(cluster, spec), own_lab.pods) == {}


def test_the_way_to_attach_changes_under_load(own_lab, tmp_path):
    node = own_lab.node("node1")
    with serving(own_lab, tmp_path, "--attach", "tcx") as cluster:
        spec = cluster.serve(cluster.new(), own_lab.pods)
        # While the kernel adds or removes a clsact qdisc, it drops packets sent on the device.
        with none_fails(cluster, spec, held=True, only="tcp"):
            for way in ("clsact", "tcx", "clsact"):
                cluster.agents["node1"].stop()
                with serving(own_lab, tmp_path, "--attach", way):
                    devices = [hooks_of(node, device) for device in ("eth0", "veth-1-1")]
                    assert devices == [both(way)] * 2


@pytest.mark.parametrize("way", WAYS)
def test_a_pod_that_comes_later_is_served_until_it_goes(own_lab, tmp_path, way):
    with serving(own_lab, tmp_path, "--attach", way) as cluster:
        spec = cluster.serve(cluster.new(), own_lab.pods)
        node = own_lab.node("node1")
        before = status(node)["loaded"]["hooks"]
        known = [len(dict(pinned_maps(node)[name].items())) for name in ("lb_devices", "lb_netns")]
        with new_pod(own_lab) as pod:
            wait_until(lambda: hooks_of(node, NEW_DEVICE) == both(way), "the device is served")
            for place in cluster.cluster_ips(spec):
                for protocol in PROTOCOLS:
                    seen = answers(pod, place, PORT, protocol)
                    assert {each["pod"] for each in seen} == names(own_lab.pods)
                    assert {each["client_address"] for each in seen} <= set(pod.addresses)
        wait_until(lambda: status(node)["loaded"]["hooks"] == before, "its hooks are gone")
        maps = pinned_maps(node)
        assert [len(dict(maps[name].items())) for name in ("lb_devices", "lb_netns")] == known
        assert "not served" not in cluster.agents["node1"].said()


@contextmanager
def new_address(node: LabNode, ranges: Ranges) -> Iterator[str]:
    """An additional address of the first node."""
    address = str(ranges.underlay()[200])
    place = [f"{address}/{ranges.underlay().prefixlen}", "dev", "eth0"]
    node.exec(["ip", "address", "add", *place])
    try:
        yield address
    finally:
        node.exec(["ip", "address", "del", *place])


def is_answered(member: Member, place: tuple[str, int]) -> bool:
    """Whether one attempt reaches a pod."""
    return fate(member, *place, seconds=0.2).startswith("pod-")


def is_left_alone(member: Member, place: tuple[str, int]) -> bool:
    """Whether one attempt reaches none."""
    return not is_answered(member, place)


def test_an_address_that_comes_later_has_node_ports_until_it_goes(own_lab, tmp_path):
    with serving(own_lab, tmp_path) as cluster:
        spec = cluster.serve(cluster.new(), own_lab.pods)
        node, client, pod = own_lab.node("node1"), own_lab.client, own_lab.pod("pod-1-1")
        everybody = names(own_lab.pods)
        for ranges in own_lab.layout.ranges:
            with new_address(node, ranges) as address:
                place = (address, spec.node_port)
                wait_until(partial(is_answered, client, place), "the address is served")
                assert pods_at(client, *place) == pods_at(node, *place, "udp") == everybody
            wait_until(partial(is_left_alone, pod, place), "it is no longer served")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_pods_need_no_socket_hooks(own_lab, tmp_path, protocol):
    pod, node = own_lab.pod("pod-1-1"), own_lab.node("node1")
    with serving(own_lab, tmp_path, "--socket-lb", "host") as cluster:
        spec, empty = cluster.serve(cluster.new(), own_lab.pods), cluster.serve(cluster.new())
        for place in cluster.cluster_ips(spec):
            seen = answers(pod, place, PORT, protocol)
            assert {each["pod"] for each in seen} == names(own_lab.pods)
            itself = {each["client_address"] for each in seen if each["pod"] == pod.name}
            others = {each["client_address"] for each in seen if each["pod"] != pod.name}
            assert itself <= set(node.addresses)
            assert others <= set(pod.addresses)
            assert pods_at(node, place, PORT, protocol) == names(own_lab.pods)
        for version in cluster.versions:
            place = address_of(node, version)
            assert pods_at(pod, place, spec.node_port, protocol) == names(own_lab.pods)
            assert fate(pod, place, empty.node_port, protocol) == REFUSED


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_a_device_without_link_header_is_served(own_lab, tmp_path, version, protocol):
    node, client = own_lab.node("node1"), own_lab.client
    own, far, length = TUNNEL[version]
    ends = [(node, [f"{own}/{length}"]), (client, [f"{far}/{length}"])]
    with serving(own_lab, tmp_path, "--host-devices", f"eth0,{DEVICE}") as cluster, tunnel(ends):
        spec = cluster.serve(cluster.new(), own_lab.pods)
        wait_until(lambda: hooks_of(node, DEVICE) == both("tcx"), "the tunnel is served")
        seen = answers(client, own, spec.node_port, protocol)
        assert {each.get("pod") or each["error"] for each in seen} == names(own_lab.pods)
        here = names(own_lab.pods_on("node1"))
        clients = {each["pod"]: each["client_address"] for each in seen}
        assert clients == {pod: far if pod in here else clients[pod] for pod in clients}
        assert {clients[pod] for pod in clients.keys() - here} <= set(node.addresses)
