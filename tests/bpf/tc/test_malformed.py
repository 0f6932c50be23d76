# SPDX-License-Identifier: Apache-2.0
"""Truncated, broken and random frames at every hook: whatever is not Service traffic passes."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from ebpflb.dataplane.layout.programs import TC_PROGRAMS
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import KINDS, NODE_MAC, SENDER_MAC, End, Kind
from tests.bpf.harness.services import (
    CLIENT_PORT,
    cluster_ip,
    local_backend,
    node_addresses,
    node_port,
    remote_backend,
)
from tests.bpf.harness.strange import NOT_OURS

PROGRAMS = sorted(TC_PROGRAMS)
LINK = 14
SHARED = [HealthCheck.function_scoped_fixture]


def seen_by(program: str, frame: bytes) -> bytes:
    """The frame as a program of its device sees it.

    Without an Ethernet header the frame starts with the network header. A test-run nevertheless
    takes the protocol from bytes 12 and 13, which hold the source address, so the protocol is put
    there. It also requires an Ethernet header's length more.
    """
    if program.startswith("lb_l3"):
        return frame[LINK : LINK + 12] + frame[12:LINK] + frame[LINK + LINK :] + bytes(LINK)
    return frame


@pytest.fixture
def services(datapath: Datapath, node: Node) -> Datapath:
    """A ClusterIP and a NodePort of every kind, with backends here and elsewhere."""
    node_addresses(datapath, node)
    for kind in KINDS:
        backends = [remote_backend(datapath, kind)[1], local_backend(datapath, kind)[1]]
        cluster_ip(datapath, kind, backends)
        node_port(datapath, kind, backends)
    return datapath


def request(kind: Kind) -> Packet:
    """A frame that opens a flow unless it is broken."""
    return kind.frame(End(kind.net.client, CLIENT_PORT), End(kind.net.cluster_ip, 80))


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("packet", NOT_OURS.values(), ids=NOT_OURS)
def test_what_is_not_ours_passes_untouched(services: Datapath, program: str, packet: Packet):
    if packet is NOT_OURS["mapped source"] and "l3" in program:
        return  # seen_by() needs the bytes of the source address
    assert_untouched(services, program, Ether(seen_by(program, bytes(packet))))


@pytest.mark.parametrize("program", [name for name in PROGRAMS if "l3" not in name])
def test_a_frame_that_is_cut_off_passes_untouched(services: Datapath, program: str, kind: Kind):
    whole = bytes(request(kind))
    network, transport = (20 if kind.net.family == 4 else 40), (20 if kind.proto == 6 else 8)
    before = services.snapshot()
    for length in range(LINK + network, LINK + network + transport):
        result = services.run(program, whole[:length])
        assert (result.verdict, bytes(result.packet)) == (Verdict.PASS, whole[:length])
    assert services.snapshot() == before


def assert_harmless(datapath: Datapath, program: str, frame: bytes) -> None:
    """It passes, leaves or is dropped; if it passes unchanged, no flow is created."""
    before, drops = entries(datapath), sum(datapath.drops().values())
    result = datapath.run(program, frame)
    after = entries(datapath)
    assert 0 <= after - before <= 2
    if result.verdict is Verdict.DROP:
        assert sum(datapath.drops().values()) == drops + 1
    if bytes(result.packet) == frame:
        assert result.verdict is not Verdict.REDIRECT
        assert after == before


def entries(datapath: Datapath) -> int:
    """The number of known flows."""
    names = ("lb_conntrack", "lb_ct_short", "lb_ct_udp", "lb_sockets")
    counts = [sum(1 for _ in datapath.maps[name].items()) for name in names]
    assert counts[1] <= SIZES.ct_short
    return sum(counts)


@pytest.mark.parametrize("program", PROGRAMS)
@settings(max_examples=150, suppress_health_check=SHARED)
@given(body=st.binary(min_size=54, max_size=200), kind=st.sampled_from(["IPv4", "IPv6", "ARP"]))
def test_random_bytes_behind_a_link_header(
    services: Datapath, program: str, body: bytes, kind: str
):
    frame = bytes(Ether(src=SENDER_MAC, dst=NODE_MAC, type=kind)) + body
    assert_harmless(services, program, seen_by(program, frame))


@pytest.mark.parametrize("program", PROGRAMS)
@settings(max_examples=150, suppress_health_check=SHARED)
@given(picture=st.data())
def test_a_request_with_some_bytes_changed(services: Datapath, program: str, picture: Any):
    kind = picture.draw(st.sampled_from(KINDS))
    frame = bytearray(bytes(request(kind)))
    places = st.integers(min_value=LINK, max_value=len(frame) - 1)
    for _ in range(picture.draw(st.integers(min_value=1, max_value=4))):
        frame[picture.draw(places)] = picture.draw(st.integers(min_value=0, max_value=255))
    assert_harmless(services, program, seen_by(program, bytes(frame)))


@pytest.mark.parametrize("program", ["lb_l3_ingress", "lb_host_ingress", "lb_pod_ingress"])
def test_a_whole_request_is_not_taken_for_a_broken_one(
    services: Datapath, program: str, kind: Kind
):
    frame = seen_by(program, bytes(request(kind)))
    assert bytes(services.run(program, frame).packet) != frame
    assert entries(services) == 2
