# SPDX-License-Identifier: Apache-2.0
"""Packets as virtual devices pass them on: checksums and segmentation left to the sender, headers
outside the linear part, datagrams aggregated into one packet.
"""

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest
from pyroute2.ethtool.ethtool import Ethtool
from scapy.layers.inet import IP, TCP
from scapy.packet import Packet

from ebpflb.dataplane.attach.links import TcDirection
from ebpflb.dataplane.attach.tc import Clsact
from ebpflb.dataplane.kernel.rtnetlink import Rtnetlink
from ebpflb.lab.namespaces import detach
from tests.bpf.conftest import way_to_attach
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import OVERLAY_MAC, POD_MAC, ROUTER_MAC, Node, Offload, Tap
from tests.bpf.harness.packets import (
    NODE_MAC,
    SENDER_MAC,
    End,
    Kind,
    assert_same,
    changed,
    filler,
    source_of,
    target_of,
    ttl_of,
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
from tests.skips import kernel_lacks

pytestmark = pytest.mark.usefixtures("wired")

SIZES = [1, 11, 12, 700]
COUNT = 3
TRIES = 100
# GRO holds packets for this many nanoseconds, but never past a tick of the kernel's clock.
HELD = "20000000"
ALL = 3


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


# Datagrams aggregated into one packet, by their sender (GSO) or by GRO, which makes lists where
# rx-gro-list is on. No byte of the second datagram may be pulled into the first; datagrams of less
# than 12 bytes are shorter than a TCP header alone.


def datagrams(udp: Kind, source: End, target: End, size: int) -> list[Packet]:
    """A row of datagrams."""
    text = filler(COUNT * size)
    found = []
    for number in range(COUNT):
        part = text[number * size : (number + 1) * size]
        frame = udp.frame(source, target, payload=part)
        if IP in frame:
            frame[IP].id += number
        found.append(changed(frame))
    return found


def send_as_one(tap: Tap, udp: Kind, source: End, target: End, size: int) -> None:
    whole = udp.frame(source, target, payload=filler(COUNT * size))
    try:
        tap.send(*segmented(whole, size))
    except OSError as error:
        kernel_lacks("UDP segmentation at tun devices", str(error))


def received(tap: Tap) -> list[Packet]:
    return [tap.receive() for _ in range(COUNT)]


def assert_each(sent: list[Packet], frames: list[Packet], **changes: Any) -> None:
    for packet, frame in zip(sent, frames, strict=True):
        assert_same(packet, changed(frame, **changes))


@pytest.mark.parametrize("size", SIZES)
def test_as_the_sender_made_it_from_outside_and_back(
    datapath: Datapath, node: Node, udp: Kind, size: int
):
    backend, index = remote_backend(datapath, udp)
    request = client(udp), node_port(datapath, udp, [index])
    send_as_one(node.uplink, udp, *request, size)
    sent = received(node.overlay)
    masked = source_of(sent[0])
    there = {"source": masked, "target": backend, "hops": 1, "macs": (NODE_MAC, OVERLAY_MAC)}
    assert_each(sent, datagrams(udp, *request, size), **there)

    send_as_one(node.overlay, udp, backend, masked, size)
    answered = received(node.uplink)
    back = {"source": request[1], "target": request[0], "hops": 1}
    macs = (NODE_MAC, answered[0].dst)
    assert_each(answered, datagrams(udp, backend, masked, size), **back, macs=macs)


@pytest.mark.parametrize("size", SIZES)
def test_as_the_sender_made_it_from_a_pod_and_back(
    datapath: Datapath, node: Node, udp: Kind, size: int
):
    backend, index = remote_backend(datapath, udp)
    request = pod(udp), cluster_ip(datapath, udp, [index])
    send_as_one(node.pod, udp, *request, size)
    there = {"target": backend, "hops": 1, "macs": (NODE_MAC, OVERLAY_MAC)}
    assert_each(received(node.overlay), datagrams(udp, *request, size), **there)

    send_as_one(node.overlay, udp, backend, request[0], size)
    back = {"source": request[1], "hops": 1, "macs": (NODE_MAC, POD_MAC)}
    assert_each(received(node.pod), datagrams(udp, backend, request[0], size), **back)


@pytest.fixture
def grouping(programs: Loaded, node: Node, tmp_path: Path) -> Iterator[Tap]:
    """An uplink whose datagrams GRO collects into lists."""
    tap = Tap("grouping", has_gro=True)
    subprocess.run(["ip", "link", "set", tap.name, "address", NODE_MAC, "up"], check=True)
    ethtool = Ethtool()
    features = ethtool.get_features(tap.name)
    features.features["rx-gro-list"].enable = True
    ethtool.set_features(tap.name, features)
    ethtool.close()
    sysfs = tmp_path / "sysfs"
    sysfs.mkdir()
    subprocess.run(["mount", "-t", "sysfs", "sysfs", sysfs], check=True)
    try:
        (sysfs / "class/net" / tap.name / "gro_flush_timeout").write_text(HELD)
        (sysfs / "class/net" / tap.name / "napi_defer_hard_irqs").write_text("1")
    finally:
        detach(sysfs)
    with Rtnetlink() as netlink:
        attach = way_to_attach(Clsact(netlink, tmp_path))
        program = programs.programs["lb_host_ingress"]
        undo = attach(program, tap.ifindex, TcDirection.INGRESS)
        yield tap
        undo()
    os.close(tap.fd)


class Listener:
    """Sees what a device receives, after GRO."""

    def __init__(self, tap: Tap) -> None:
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL))
        self._socket.bind((tap.name, 0))
        self._socket.setblocking(False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def longest(self) -> int:
        """Bytes of the longest packet since the last call."""
        found = [0]
        with suppress(BlockingIOError):
            while True:
                found.append(len(self._socket.recv(1 << 16)))
        return max(found)


@pytest.mark.parametrize("size", SIZES)
def test_as_gro_made_a_list_of_them(
    datapath: Datapath, node: Node, grouping: Tap, udp: Kind, size: int
):
    datapath.device(grouping.ifindex, snat4=udp.net.node, snat6=udp.net.node)
    backend, index = local_backend(datapath, udp, udp.net.pod)
    request = client(udp), node_port(datapath, udp, [index])
    frames = datagrams(udp, *request, size)
    with Listener(grouping) as listener:
        for _ in range(TRIES):
            for frame in frames:
                grouping.send(frame)
            for packet, frame in zip(received(node.pod), frames, strict=True):
                # The kernel decrements the TTL of the first one only.
                hops = ttl_of(frame) - ttl_of(packet)
                arrived = changed(frame, target=backend, hops=hops, macs=(NODE_MAC, POD_MAC))
                assert_same(packet, arrived)
            if listener.longest() >= len(frames[0]) + (COUNT - 1) * size:
                return
    raise AssertionError("GRO has made no list")
