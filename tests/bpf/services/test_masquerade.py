# SPDX-License-Identifier: Apache-2.0
"""A frontend that masquerades every client: backends see an address of this node."""

from collections.abc import Callable

import pytest

from ebpflb.dataplane.layout.enums import CtFlag, DescFlag, DropReason, Hook
from ebpflb.dataplane.layout.structs import LbAddr
from tests.bpf.harness.datapath import SNAT_PORTS, Datapath, Verdict
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, assert_same, changed, source_of
from tests.bpf.harness.services import (
    CLIENT_PORT,
    client,
    cluster_ip,
    external_ip,
    local_backend,
    node_port,
    pod,
    remote_backend,
    unnamed_backend,
)

pytestmark = pytest.mark.usefixtures("addresses")

# The pod of the test node whose device has a neighbour, here as a backend of another pod.
OTHER_POD_PORT = 50000
Make = Callable[[Datapath, Kind, list[int]], End]


def of_external_ip(datapath: Datapath, kind: Kind, backends: list[int]) -> End:
    return external_ip(datapath, kind, local=backends, others=backends)


HERE = pytest.mark.parametrize("backend_here", [local_backend, unnamed_backend])
MAKES = pytest.mark.parametrize("make", [cluster_ip, node_port, of_external_ip])


def masqueraded(datapath: Datapath, kind: Kind, make: Make, backend: int) -> End:
    frontend = make(datapath, kind, [backend])
    datapath.flag_frontends(DescFlag.LB_DESC_MASQUERADE)
    return frontend


def other_pod(kind: Kind) -> End:
    """A pod of this node that is not the backend `kind.net.pod`."""
    return End(kind.net.local, OTHER_POD_PORT)


def assert_is_masqueraded(source: End, address: str) -> None:
    assert source.address == address
    assert source.port not in (CLIENT_PORT, OTHER_POD_PORT)
    assert any(first <= source.port <= last for first, last in SNAT_PORTS)


@HERE
@MAKES
def test_a_backend_here_sees_the_node_instead_of_the_client_outside(
    datapath: Datapath, node: Node, kind: Kind, make: Make, backend_here
):
    backend, index = backend_here(datapath, kind, kind.net.pod)
    request = kind.frame(client(kind), masqueraded(datapath, kind, make, index))

    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)

    assert result.verdict is Verdict.REDIRECT
    source = source_of(result.packet)
    assert_is_masqueraded(source, kind.net.node)
    expected = changed(request, source=source, target=backend, hops=1)
    assert_same(result.packet, expected)


@HERE
@MAKES
def test_the_reply_of_a_backend_here_goes_from_its_device_to_the_client(
    datapath: Datapath, node: Node, kind: Kind, make: Make, backend_here
):
    backend, index = backend_here(datapath, kind, kind.net.pod)
    frontend = masqueraded(datapath, kind, make, index)
    request = kind.frame(client(kind), frontend)
    sent = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex).packet
    reply = kind.frame(backend, source_of(sent), "SA")

    result = datapath.run("lb_pod_ingress", reply, ifindex=node.pod.ifindex)

    assert result.verdict is Verdict.REDIRECT
    expected = changed(reply, source=frontend, target=client(kind), hops=1)
    assert_same(result.packet, expected)


@MAKES
def test_a_backend_elsewhere_sees_the_node_instead_of_a_pod(
    datapath: Datapath, node: Node, kind: Kind, make: Make
):
    backend, index = remote_backend(datapath, kind)
    request = kind.frame(pod(kind), masqueraded(datapath, kind, make, index))

    result = datapath.run("lb_pod_ingress", request, ifindex=node.pod.ifindex)

    assert result.verdict is Verdict.REDIRECT
    source = source_of(result.packet)
    assert_is_masqueraded(source, kind.net.overlay)
    expected = changed(request, source=source, target=backend, hops=1)
    assert_same(result.packet, expected)


@MAKES
def test_the_reply_of_a_backend_elsewhere_goes_to_the_pod(
    datapath: Datapath, node: Node, kind: Kind, make: Make
):
    backend, index = remote_backend(datapath, kind)
    frontend = masqueraded(datapath, kind, make, index)
    request = kind.frame(pod(kind), frontend)
    sent = datapath.run("lb_pod_ingress", request, ifindex=node.pod.ifindex).packet
    reply = kind.frame(backend, source_of(sent), "SA")

    result = datapath.run("lb_host_ingress", reply, ifindex=node.overlay.ifindex)

    assert result.verdict is Verdict.REDIRECT
    expected = changed(reply, source=frontend, target=pod(kind), hops=1)
    assert_same(result.packet, expected)


@MAKES
def test_a_pod_here_sees_the_node_instead_of_another_pod_here(
    datapath: Datapath, node: Node, kind: Kind, make: Make
):
    backend, index = local_backend(datapath, kind, kind.net.pod)
    request = kind.frame(other_pod(kind), masqueraded(datapath, kind, make, index))

    result = datapath.run("lb_pod_ingress", request, ifindex=node.bare.ifindex)

    assert result.verdict is Verdict.REDIRECT
    source = source_of(result.packet)
    assert_is_masqueraded(source, kind.net.node)
    expected = changed(request, source=source, target=backend, hops=1)
    assert_same(result.packet, expected)


def test_a_masqueraded_flow_is_followed_to_its_end(datapath: Datapath, node: Node, tcp: Kind):
    backend, index = local_backend(datapath, tcp, tcp.net.pod)
    frontend = masqueraded(datapath, tcp, cluster_ip, index)
    sources = set()
    for flags in ("S", "A", "PA"):
        request = tcp.frame(client(tcp), frontend, flags)
        sent = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex).packet
        sources.add(source_of(sent))
        if flags == "S":
            reply = tcp.frame(backend, source_of(sent), "SA")
            datapath.run("lb_pod_ingress", reply, ifindex=node.pod.ifindex)
    assert len(sources) == 1
    assert not datapath.short()
    assert {entry.flags for entry in datapath.established().values()} == {
        CtFlag.LB_CT_SNAT | CtFlag.LB_CT_TO_POD
    }


@HERE
def test_what_a_process_of_this_node_serves_is_not_masqueraded(
    datapath: Datapath, node: Node, kind: Kind, backend_here
):
    backend, index = backend_here(datapath, kind, kind.net.node)
    frontend = masqueraded(datapath, kind, cluster_ip, index)
    for program, source, device in (
        ("lb_host_ingress", client(kind), node.uplink),
        ("lb_pod_ingress", pod(kind), node.pod),
    ):
        request = kind.frame(source, frontend)
        result = datapath.run(program, request, ifindex=device.ifindex)
        assert result.verdict is Verdict.PASS
        assert_same(result.packet, changed(request, target=backend))


def test_a_pod_that_reaches_itself_is_a_hairpin_as_without_masquerade(
    datapath: Datapath, node: Node, kind: Kind
):
    _, index = local_backend(datapath, kind, kind.net.pod)
    frontend = masqueraded(datapath, kind, cluster_ip, index)
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend), ifindex=node.pod.ifindex)
    entries = datapath.short().values()
    assert {entry.flags for entry in entries} == {CtFlag.LB_CT_SNAT | CtFlag.LB_CT_HAIRPIN}
    assert {entry.hook for entry in entries} == {Hook.LB_HOOK_POD_INGRESS}


def test_without_an_address_of_the_node_it_is_dropped(datapath: Datapath, node: Node, kind: Kind):
    datapath.settings(node4=LbAddr(), node6=LbAddr())
    _, index = local_backend(datapath, kind, kind.net.pod)
    request = kind.frame(client(kind), masqueraded(datapath, kind, cluster_ip, index))
    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_NO_SNAT_ADDRESS: 1}
    assert not datapath.short()
