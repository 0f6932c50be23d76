# SPDX-License-Identifier: Apache-2.0
"""Packets as virtual devices hand them over: checksums and segments left to the device that sends,
headers outside the linear part.
"""

import pytest
from scapy.layers.inet import TCP

from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import OVERLAY_MAC, POD_MAC, ROUTER_MAC, Node, Offload
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    Kind,
    assert_same,
    changed,
    filler,
    source_of,
    target_of,
)
from tests.bpf.harness.services import (
    client,
    cluster_ip,
    local_backend,
    node_port,
    pod,
    remote_backend,
)
from tests.bpf.tc.offloads import partial, segmented

pytestmark = pytest.mark.usefixtures("wired")


def test_a_partial_checksum_is_completed_behind_the_translation(
    datapath: Datapath, node: Node, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    frontend = cluster_ip(datapath, kind, [index])
    request = kind.frame(pod(kind), frontend)
    node.pod.send(*partial(request))
    sent = node.overlay.receive()
    macs = (NODE_MAC, OVERLAY_MAC)
    assert_same(sent, changed(request, target=backend, hops=1, macs=macs))

    reply = kind.frame(backend, pod(kind), "SA")
    node.overlay.send(*partial(reply))
    answered = changed(reply, source=frontend, hops=1, macs=(NODE_MAC, POD_MAC))
    assert_same(node.pod.receive(), answered)


def test_a_partial_checksum_survives_masquerading(datapath: Datapath, node: Node, kind: Kind):
    backend, index = remote_backend(datapath, kind)
    frontend = node_port(datapath, kind, [index])
    request = kind.frame(client(kind), frontend)
    node.uplink.send(*partial(request))
    sent = node.overlay.receive()
    macs = (NODE_MAC, OVERLAY_MAC)
    source = source_of(sent)
    assert_same(sent, changed(request, source=source, target=backend, hops=1, macs=macs))

    reply = kind.frame(backend, source, "SA")
    node.overlay.send(*partial(reply))
    macs = (NODE_MAC, ROUTER_MAC)
    expected = changed(reply, source=frontend, target=client(kind), hops=1, macs=macs)
    assert_same(node.uplink.receive(), expected)


def test_segments_of_a_long_packet_are_translated(datapath: Datapath, node: Node, tcp: Kind):
    backend, index = remote_backend(datapath, tcp)
    frontend = node_port(datapath, tcp, [index])
    node.uplink.send(tcp.frame(client(tcp), frontend))
    source = source_of(node.overlay.receive())
    long = tcp.frame(client(tcp), frontend, "PA", payload=filler(3000))
    node.uplink.send(*segmented(long, 1000))

    sent = [node.overlay.receive() for _ in range(3)]
    for segment in sent:
        assert (source_of(segment), target_of(segment)) == (source, backend)
        assert_same(segment, changed(segment))
    assert b"".join(bytes(segment[TCP].payload) for segment in sent) == bytes(long[TCP].payload)


def test_headers_outside_the_linear_part_are_translated(datapath: Datapath, node: Node, kind: Kind):
    itself, index = local_backend(datapath, kind, kind.net.pod)
    frontend = cluster_ip(datapath, kind, [index])
    request = kind.frame(pod(kind), frontend, payload=filler(5000))
    node.pod.send(request, Offload(header_length=14))
    seen = node.pod.receive()
    turned = (NODE_MAC, SENDER_MAC)
    assert_same(seen, changed(request, source=source_of(seen), target=itself, macs=turned))


def test_a_packet_whose_headers_are_outside_the_linear_part_is_refused(
    datapath: Datapath, node: Node, kind: Kind
):
    request = kind.frame(pod(kind), cluster_ip(datapath, kind), payload=bytes(5000))
    node.pod.send(request, Offload(header_length=14))
    error = node.pod.receive()
    assert (error.payload.src, error.payload.dst) == (kind.net.cluster_ip, kind.net.pod)
    assert bytes(request.payload)[:28] in bytes(error)
