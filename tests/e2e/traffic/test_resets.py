# SPDX-License-Identifier: Apache-2.0
"""A genuine reset ends a connection, and the sender of an unknown connection's packet gets one.
Forged ones are tested in tests/e2e/attacks.
"""

import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import pytest

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key, reverse
from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings
from ebpflb.lab import LabNode
from ebpflb.model.address import Protocol, parse_address
from tests.e2e.harness.cluster import Cluster, address_of
from tests.e2e.harness.command import metric
from tests.e2e.harness.in_force import pinned_maps
from tests.e2e.harness.sockets import connected, exchange
from tests.e2e.harness.waiting import wait_until
from tests.e2e.steps.outside_cgroup import outside

_RESET_AT_ONCE = struct.pack("ii", 1, 0)


@contextmanager
def closed_timeout(node: LabNode, seconds: int) -> Iterator[Callable[[], None]]:
    """How long closed connections are remembered; set again because the agent may restore it."""
    settings = pinned_maps(node)["lb_settings"]
    before = settings.lookup(bytes(4))
    assert before
    changed = LbSettings.from_buffer_copy(before)
    changed.tcp_closed_timeout = seconds

    def set_again() -> None:
        settings.update(bytes(4), bytes(changed))

    set_again()
    try:
        yield set_again
    finally:
        settings.update(bytes(4), before)


def flow_of(made: socket.socket) -> bytes:
    """Its key where the client is outside."""
    source, target = (
        (parse_address(end[0]), end[1]) for end in (made.getsockname(), made.getpeername())
    )
    return flow_key(source, target, Protocol.TCP)


def entry_of(node: LabNode, flow: bytes) -> LbConntrack | None:
    maps = pinned_maps(node)
    found = next((value for name in FLOW_TABLES if (value := maps[name].lookup(flow))), None)
    return LbConntrack.from_buffer_copy(found) if found else None


def is_known(node: LabNode, flow: bytes) -> bool:
    return entry_of(node, flow) is not None


@pytest.mark.parametrize("backend", ["pod-1-1", "pod-2-1"])
def test_a_reset_frees_its_connection_alone(cluster, lab, client, backend):
    pod, node = lab.pod(backend), lab.node("node1")
    spec = cluster.serve(cluster.new(), [pod])
    places = [(address_of(node, version), spec.node_port) for version in cluster.versions]
    with ExitStack() as stack:
        held, reset = (
            [stack.enter_context(connected(client, *place)) for place in places] for _ in range(2)
        )
        assert {exchange(each) for each in (*held, *reset)} == {backend}
        flows = [flow_of(each) for each in reset]
        assert all(is_known(node, flow) for flow in flows)
        with closed_timeout(node, 1) as set_again:
            for each in reset:
                each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_ONCE)
                each.close()

            def are_forgotten() -> bool:
                set_again()
                return not any(is_known(node, flow) for flow in flows)

            wait_until(are_forgotten, "those that were reset are forgotten")
            assert all(is_known(node, flow_of(each)) for each in held)
        assert [exchange(each) for each in held for _ in range(3)] == [backend] * 3 * len(held)


UNKNOWN = 'ebpflb_dropped_total{interface="eth0",reason="unknown_connection"}'


@pytest.fixture
def resetting(cluster: Cluster) -> Cluster:
    """The agents know that no other NAT serves Services."""
    wait_until(lambda: all(map(resets_unknown, cluster.nodes)), "unknown connections are reset")
    return cluster


def resets_unknown(node: LabNode) -> bool:
    settings = LbSettings.from_buffer_copy(pinned_maps(node)["lb_settings"].lookup(bytes(4)) or b"")
    return bool(settings.flags & SettingFlag.LB_SETTING_RESETS)


def forget(node: LabNode, flow: bytes) -> None:
    """Delete both entries of a flow on the node."""
    maps, original = pinned_maps(node), entry_of(node, flow)
    assert original
    for table in (maps[name] for name in FLOW_TABLES):
        table.delete_batch([flow, reverse(bytes(original.to))])


@pytest.mark.parametrize("backend", ["pod-1-1", "pod-2-1"])
def test_a_connection_ends_at_once_when_its_address_moves_to_another_node(
    resetting, lab, client, backend
):
    second = lab.node("node2")
    spec = resetting.serve(resetting.new("LoadBalancer"), [lab.pod(backend)])
    before = metric(second, UNKNOWN)
    for version in resetting.versions:
        vip, bits = lab.ingress_ip(spec.number, version), 32 if version == 4 else 128
        with connected(client, vip, spec.port) as made:
            assert exchange(made) == backend
            via = ["via", address_of(second, version)]
            client.exec(["ip", "route", "replace", f"{vip}/{bits}", *via])
            try:
                with pytest.raises(ConnectionResetError):
                    exchange(made)
                with connected(client, vip, spec.port) as again:
                    assert exchange(again) == backend
            finally:
                client.exec(["ip", "route", "del", f"{vip}/{bits}", *via])
    now = partial(metric, second, UNKNOWN)
    wait_until(lambda: now() >= before + len(resetting.versions), "they are counted")


@pytest.mark.parametrize("version", [4, 6])
def test_a_connection_of_a_pod_ends_at_once_when_its_node_has_lost_it(resetting, lab, version):
    pod, node = lab.pod("pod-1-1"), lab.node("node1")
    spec = resetting.serve(resetting.new(), [lab.pod("pod-2-1")])
    with outside(pod, version, "tcp") as made:
        made.connect((lab.cluster_ip(spec.number, version), spec.port))
        assert exchange(made) == "pod-2-1"
        forget(node, flow_of(made))
        with pytest.raises(ConnectionResetError):
            exchange(made)
