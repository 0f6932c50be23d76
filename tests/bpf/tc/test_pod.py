# SPDX-License-Identifier: Apache-2.0
"""At a pod's device: its packets to Service addresses, and the replies to it."""

from ebpflb.dataplane.layout.enums import AddrFlag, CtFlag, Direction, DropReason, Hook
from ebpflb.dataplane.layout.structs import LbAddr, LbTraffic
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    changed,
    source_of,
)
from tests.bpf.harness.services import (
    BACKEND_PORT,
    CLIENT_PORT,
    cluster_ip,
    external_ip,
    local_backend,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)


def test_a_request_to_a_cluster_ip_goes_to_the_backend(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    request = kind.frame(pod(kind), cluster_ip(datapath, kind, [index]))

    result = datapath.run("lb_pod_ingress", request)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(request, target=backend))


def test_the_reply_comes_from_the_cluster_ip(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    reply = kind.frame(backend, pod(kind), "SA")

    result = datapath.run("lb_pod_egress", reply)

    assert result.verdict is Verdict.PASS
    assert_same(result.packet, changed(reply, source=frontend))


def test_a_request_makes_one_entry_for_each_direction(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))

    original = datapath.entry(pod(kind), frontend, kind.proto)
    reply = datapath.entry(backend, pod(kind), kind.proto)

    assert (original.direction, original.hook) == (
        Direction.LB_DIR_ORIGINAL,
        Hook.LB_HOOK_POD_INGRESS,
    )
    assert (reply.direction, reply.hook) == (Direction.LB_DIR_REPLY, Hook.LB_HOOK_POD_EGRESS)
    assert len(datapath.short()) == 2
    assert not datapath.established()


def test_all_packets_of_a_flow_go_to_one_backend(datapath: Datapath, kind: Kind):
    backends = [datapath.backend(End(kind.net.remote, 8000 + i), kind.proto) for i in range(50)]
    frontend = cluster_ip(datapath, kind, backends)
    first = datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))

    for flags in ("A", "PA", "PA", "FA"):
        packet = kind.frame(pod(kind), frontend, flags)
        result = datapath.run("lb_pod_ingress", packet)
        assert result.packet.payload.payload.dport == first.packet.payload.payload.dport


def test_a_packet_inside_an_unknown_connection_passes(datapath: Datapath, tcp: Kind):
    _, index = remote_backend(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, [index])
    for flags in ("A", "PA", "FA", "R", "SA", "SR"):
        assert_untouched(datapath, "lb_pod_ingress", tcp.frame(pod(tcp), frontend, flags))


def test_what_goes_elsewhere_passes(datapath: Datapath, kind: Kind):
    cluster_ip(datapath, kind)
    assert_untouched(datapath, "lb_pod_ingress", kind.frame(pod(kind), End(kind.net.client, 80)))


def test_one_port_of_a_pod_may_reach_a_backend_by_two_frontends(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, kind)
    for frontend in (cluster_ip(datapath, kind, [index]), node_port(datapath, kind, [index])):
        sent = datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend)).packet
        reply = kind.frame(backend, source_of(sent), "SA")

        result = datapath.run("lb_pod_egress", reply)

        assert_same(result.packet, changed(reply, source=frontend, target=pod(kind)))


def test_an_unknown_flow_back_to_the_pod_passes(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), cluster_ip(datapath, kind, [index])))
    assert_untouched(datapath, "lb_pod_egress", kind.frame(backend, pod(kind, 40001), "SA"))


def test_a_reply_is_reversed_at_the_pods_device_only(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, kind)
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), cluster_ip(datapath, kind, [index])))
    reply = kind.frame(backend, pod(kind), "SA")
    for program in ("lb_host_ingress", "lb_host_egress", "lb_pod_ingress"):
        assert_untouched(datapath, program, reply)


def test_an_address_whose_service_went_serves_the_flows_it_has(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend))
    datapath.maps["lb_frontends"].delete_batch(
        [key for key, _ in datapath.maps["lb_frontends"].items()]
    )
    datapath.address(frontend.address, 0)
    packet = kind.frame(pod(kind), frontend, "A")

    assert_same(datapath.run("lb_pod_ingress", packet).packet, changed(packet, target=backend))
    assert_untouched(datapath, "lb_pod_ingress", kind.frame(pod(kind, 40001), frontend))


def test_an_external_ip_uses_the_backends_for_local_sources(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = external_ip(datapath, kind, local=[index], others=[])
    request = kind.frame(pod(kind), frontend)
    assert_same(datapath.run("lb_pod_ingress", request).packet, changed(request, target=backend))


def test_a_node_port_is_served_on_each_node_address(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    backend, index = remote_backend(datapath, kind)
    port = node_port(datapath, kind, [index]).port
    for i, address in enumerate((kind.net.node, kind.net.overlay)):
        request = kind.frame(pod(kind, CLIENT_PORT + i), End(address, port))
        result = datapath.run("lb_pod_ingress", request)
        assert_same(result.packet, changed(request, target=backend))


def test_a_node_address_that_accepts_no_node_ports_is_left_alone(datapath: Datapath, kind: Kind):
    _, index = remote_backend(datapath, kind)
    port = node_port(datapath, kind, [index]).port
    datapath.address(kind.net.node, AddrFlag.LB_ADDR_NODE)
    request = kind.frame(pod(kind), End(kind.net.node, port))
    assert_untouched(datapath, "lb_pod_ingress", request)


def test_a_pod_that_reaches_itself_sees_the_node_as_client(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    itself, index = local_backend(datapath, kind, kind.net.pod)
    request = kind.frame(pod(kind), cluster_ip(datapath, kind, [index]))

    result = datapath.run("lb_pod_ingress", request, ifindex=node.pod.ifindex)

    assert result.verdict is Verdict.REDIRECT
    source = source_of(result.packet)
    assert source.address == kind.net.node
    assert source.port != CLIENT_PORT
    turned = changed(request, source=source, target=itself, macs=(NODE_MAC, SENDER_MAC))
    assert_same(result.packet, turned)


def test_the_reply_of_a_pod_to_itself_comes_from_the_cluster_ip(
    datapath: Datapath, node: Node, kind: Kind
):
    node_addresses(datapath, node)
    itself, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    request = datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend)).packet
    reply = kind.frame(itself, source_of(request), "SA")

    result = datapath.run("lb_pod_ingress", reply, ifindex=node.pod.ifindex)

    assert result.verdict is Verdict.REDIRECT
    expected = changed(reply, source=frontend, target=pod(kind), macs=(NODE_MAC, SENDER_MAC))
    assert_same(result.packet, expected)


def test_a_hairpin_is_marked_in_both_entries(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    _, index = local_backend(datapath, kind, kind.net.pod)
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), cluster_ip(datapath, kind, [index])))
    flags = {entry.flags for entry in datapath.short().values()}
    assert flags == {CtFlag.LB_CT_SNAT | CtFlag.LB_CT_HAIRPIN}


def test_a_hairpin_without_a_node_address_is_dropped(datapath: Datapath, kind: Kind):
    datapath.settings(node4=LbAddr(), node6=LbAddr())
    _, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    assert datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend)).verdict is Verdict.DROP
    assert datapath.drops() == {DropReason.LB_DROP_NO_SNAT_ADDRESS: 1}
    assert not datapath.short()


def test_a_connection_is_counted_at_its_frontend_and_its_backend(datapath: Datapath, kind: Kind):
    _, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    for port in range(40000, 40003):
        for flags in ("S", "A"):
            datapath.run("lb_pod_ingress", kind.frame(pod(kind, port), frontend, flags))
    assert datapath.counts("lb_count_front", 1) == (3, 0, 0)
    assert datapath.counts("lb_count_back", index) == (3, 0, 0)
    assert not datapath.drops()


def test_the_packets_of_a_flow_and_their_payload_are_counted(datapath: Datapath, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend, payload=b""))
    datapath.run("lb_pod_egress", kind.frame(backend, pod(kind), "SA", payload=b"12"))
    datapath.run("lb_pod_ingress", kind.frame(pod(kind), frontend, "A", payload=b"12345"))

    original = datapath.entry(pod(kind), frontend, kind.proto)
    answered = datapath.entry(backend, pod(kind), kind.proto)
    assert (original.packets, original.bytes) == (2, 5)
    assert (answered.packets, answered.bytes) == (1, 2)
    for name, at in (("lb_count_front", 1), ("lb_count_back", index)):
        counts = datapath.all_counts(name, at)
        assert (counts.original, counts.reply) == (LbTraffic(2, 5), LbTraffic(1, 2))


def test_the_backends_port_is_used_whatever_the_frontends_is(datapath: Datapath, kind: Kind):
    same = End(kind.net.remote, 80)
    frontend = cluster_ip(datapath, kind, [datapath.backend(same, kind.proto)])
    request = kind.frame(pod(kind), frontend)
    assert_same(datapath.run("lb_pod_ingress", request).packet, changed(request, target=same))
    assert frontend.port == same.port != BACKEND_PORT
