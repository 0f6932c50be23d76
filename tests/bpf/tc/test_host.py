# SPDX-License-Identifier: Apache-2.0
"""At the host's devices: requests from outside, to backends on this and on other nodes."""

import pytest

from ebpflb.dataplane.layout.enums import AddrFlag, CtFlag, DropReason
from tests.bpf.harness.datapath import SNAT_PORTS, Datapath, Verdict, assert_untouched
from tests.bpf.harness.errors import NO_WAY, assert_answered
from tests.bpf.harness.node import NO_NEIGHBOUR, NO_ROUTE, ROUTER_MAC, Node
from tests.bpf.harness.packets import End, Kind, assert_same, changed, source_of
from tests.bpf.harness.services import (
    CLIENT_PORT,
    NODE_PORT,
    client,
    cluster_ip,
    external_ip,
    local_backend,
    node_port,
    remote_backend,
    unnamed_backend,
)

pytestmark = pytest.mark.usefixtures("addresses")


def arrive(datapath: Datapath, node: Node, packet):
    """Let a frame arrive at the uplink."""
    return datapath.run("lb_host_ingress", packet, ifindex=node.uplink.ifindex)


# A backend on this node, known by its flag or only by its route

HERE = pytest.mark.parametrize("backend_here", [local_backend, unnamed_backend])


@pytest.mark.parametrize("is_known", [False, True], ids=["new", "known"])
@pytest.mark.parametrize("backend_anywhere", [local_backend, remote_backend])
def test_a_frame_for_another_node_is_left_alone(
    datapath: Datapath, node: Node, kind: Kind, backend_anywhere, is_known
):
    """Received by a device in promiscuous mode."""
    _, index = backend_anywhere(datapath, kind)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    if is_known:
        arrive(datapath, node, request)
    request.dst = ROUTER_MAC
    assert_untouched(datapath, "lb_host_ingress", request, ifindex=node.uplink.ifindex)


@HERE
def test_a_local_backend_sees_the_client(datapath: Datapath, node: Node, kind: Kind, backend_here):
    backend, index = backend_here(datapath, kind)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))

    result = arrive(datapath, node, request)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(request, target=backend))


@HERE
def test_the_reply_of_a_local_backend_leaves_as_the_node_ports(
    datapath: Datapath, node: Node, kind: Kind, backend_here
):
    backend, index = backend_here(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    arrive(datapath, node, kind.frame(client(kind), frontend))
    reply = kind.frame(backend, client(kind), "SA")

    result = datapath.run("lb_host_egress", reply, ifindex=node.uplink.ifindex)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(reply, source=frontend))


def test_a_reply_that_leaves_by_another_device_is_redirected_to_the_right_one(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    arrive(datapath, node, kind.frame(client(kind), frontend))
    reply = kind.frame(backend, client(kind), "SA")

    result = datapath.run("lb_host_egress", reply, ifindex=node.overlay.ifindex)

    assert result.verdict is Verdict.REDIRECT
    assert_same(result.packet, changed(reply, source=frontend))


def test_a_reply_without_a_route_by_the_requests_device_leaves_where_the_stack_sends_it(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = local_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)
    datapath.run("lb_host_ingress", request, ifindex=node.overlay.ifindex)
    reply = kind.frame(backend, client(kind), "SA")

    result = datapath.run("lb_host_egress", reply, ifindex=node.uplink.ifindex)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(reply, source=frontend))


def test_a_cluster_ip_serves_clients_outside(datapath: Datapath, node: Node, kind: Kind):
    backend, index = local_backend(datapath, kind)
    request = kind.frame(client(kind), cluster_ip(datapath, kind, [index]))
    assert_same(arrive(datapath, node, request).packet, changed(request, target=backend))


def test_an_external_ip_uses_the_backends_for_others(datapath: Datapath, node: Node, kind: Kind):
    backend, index = local_backend(datapath, kind)
    request = kind.frame(client(kind), external_ip(datapath, kind, local=[], others=[index]))
    assert_same(arrive(datapath, node, request).packet, changed(request, target=backend))


@HERE
def test_a_process_of_this_node_is_reached_with_the_last_hop(
    datapath: Datapath, node: Node, kind: Kind, backend_here
):
    backend, index = backend_here(datapath, kind, kind.net.overlay)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]), ttl=1)

    result = arrive(datapath, node, request)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(request, target=backend))


# A backend on another node


def test_a_remote_backend_is_reached_with_the_nodes_address(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))

    result = arrive(datapath, node, request)

    assert result.verdict is Verdict.REDIRECT
    source = source_of(result.packet)
    assert source.address == kind.net.overlay
    assert any(first <= source.port <= last for first, last in SNAT_PORTS)
    expected = changed(request, source=source, target=backend, hops=1)
    assert_same(result.packet, expected)


def test_the_reply_of_a_remote_backend_goes_to_the_client(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    sent = arrive(datapath, node, kind.frame(client(kind), frontend)).packet
    reply = kind.frame(backend, source_of(sent), "SA")

    result = datapath.run("lb_host_ingress", reply, ifindex=node.overlay.ifindex)

    assert result.verdict is Verdict.REDIRECT
    expected = changed(reply, source=frontend, target=client(kind), hops=1)
    assert_same(result.packet, expected)


def test_a_masqueraded_flow_keeps_its_port(datapath: Datapath, node: Node, kind: Kind):
    _, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    first = arrive(datapath, node, kind.frame(client(kind), frontend)).packet
    for flags in ("A", "PA", "FA"):
        packet = arrive(datapath, node, kind.frame(client(kind), frontend, flags)).packet
        assert source_of(packet) == source_of(first)


def test_both_entries_of_a_masqueraded_flow_say_so(datapath: Datapath, node: Node, kind: Kind):
    _, index = remote_backend(datapath, kind)
    arrive(datapath, node, kind.frame(client(kind), node_port(datapath, kind, [index])))
    assert [entry.flags for entry in datapath.short().values()] == [CtFlag.LB_CT_SNAT] * 2


def test_the_reply_of_a_masqueraded_flow_is_not_reversed_at_egress(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    sent = arrive(datapath, node, kind.frame(client(kind), frontend)).packet
    reply = kind.frame(backend, source_of(sent), "SA")
    assert_untouched(datapath, "lb_host_egress", reply, ifindex=node.overlay.ifindex)


def test_without_a_neighbour_the_kernel_resolves_it(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind, NO_NEIGHBOUR[kind.net.remote])
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))

    result = arrive(datapath, node, request)

    assert result.verdict is Verdict.REDIRECT
    source = source_of(result.packet)
    assert_same(result.packet, changed(request, source=source, target=backend, hops=1))


def test_without_a_route_the_client_gets_an_error(datapath: Datapath, node: Node, kind: Kind):
    _, index = remote_backend(datapath, kind, NO_ROUTE[kind.net.remote])
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    assert_answered(arrive(datapath, node, request), kind, request, NO_WAY)
    assert datapath.drops() == {DropReason.LB_DROP_NO_ROUTE: 1}
    assert not datapath.short()


def test_without_an_address_to_masquerade_with_it_is_dropped(
    datapath: Datapath, node: Node, kind: Kind
):
    _, index = remote_backend(datapath, kind)
    datapath.device(node.overlay.ifindex)
    request = kind.frame(client(kind), node_port(datapath, kind, [index]))
    assert arrive(datapath, node, request).verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_NO_SNAT_ADDRESS: 1}
    assert not datapath.short()


# Not a frontend


def test_an_unknown_port_of_the_node_passes(datapath: Datapath, node: Node, kind: Kind):
    node_port(datapath, kind)
    request = kind.frame(client(kind), End(kind.net.node, 22))
    assert_untouched(datapath, "lb_host_ingress", request, ifindex=node.uplink.ifindex)


def test_an_unknown_port_of_an_external_ip_passes(datapath: Datapath, node: Node, kind: Kind):
    frontend = external_ip(datapath, kind)
    request = kind.frame(client(kind), frontend._replace(port=22))
    assert_untouched(datapath, "lb_host_ingress", request, ifindex=node.uplink.ifindex)


def test_an_unknown_port_of_a_cluster_ip_that_is_a_node_address_passes(
    datapath: Datapath, node: Node, kind: Kind
):
    frontend = cluster_ip(datapath, kind)
    flags = AddrFlag.LB_ADDR_CLUSTER_IP | AddrFlag.LB_ADDR_NODE
    datapath.address(frontend.address, flags)
    request = kind.frame(client(kind), frontend._replace(port=22))
    assert_untouched(datapath, "lb_host_ingress", request, ifindex=node.uplink.ifindex)


def test_a_node_port_is_not_served_on_an_external_ip(datapath: Datapath, node: Node, kind: Kind):
    _, index = local_backend(datapath, kind)
    node_port(datapath, kind, [index])
    frontend = external_ip(datapath, kind)
    request = kind.frame(client(kind), frontend._replace(port=NODE_PORT))
    assert_untouched(datapath, "lb_host_ingress", request, ifindex=node.uplink.ifindex)


def test_what_is_forwarded_passes_in_both_directions(datapath: Datapath, node: Node, kind: Kind):
    packet = kind.frame(client(kind), End(kind.net.local, 80))
    for program in ("lb_host_ingress", "lb_host_egress"):
        assert_untouched(datapath, program, packet, ifindex=node.uplink.ifindex)


# The host's own packets that no socket hook saw


def test_the_hosts_own_request_is_routed_to_the_backend(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    request = kind.frame(End(kind.net.node, CLIENT_PORT), cluster_ip(datapath, kind, [index]))

    result = datapath.run("lb_host_egress", request, ifindex=node.uplink.ifindex)

    assert result.verdict is Verdict.REDIRECT
    assert_same(result.packet, changed(request, target=backend, hops=1))


def test_the_reply_to_the_host_goes_up_the_stack(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    host = End(kind.net.node, CLIENT_PORT)
    datapath.run("lb_host_egress", kind.frame(host, frontend), ifindex=node.uplink.ifindex)
    reply = kind.frame(backend, host, "SA")

    result = datapath.run("lb_host_ingress", reply, ifindex=node.overlay.ifindex)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(reply, source=frontend))


@HERE
def test_the_reply_of_a_pod_here_to_the_host_is_reversed_at_the_pods_device(
    datapath: Datapath, node: Node, kind: Kind, backend_here
):
    backend, index = backend_here(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    host = End(kind.net.node, CLIENT_PORT)
    datapath.run("lb_host_egress", kind.frame(host, frontend), ifindex=node.uplink.ifindex)
    reply = kind.frame(backend, host, "SA")

    result = datapath.run("lb_pod_ingress", reply, ifindex=node.pod.ifindex)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(reply, source=frontend))
