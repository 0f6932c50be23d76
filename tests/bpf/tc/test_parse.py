# SPDX-License-Identifier: Apache-2.0
"""parse.h: from bytes to a tuple, or a packet that passes unchanged."""

import ctypes

import pytest
from scapy.layers.inet import TCP
from scapy.packet import Packet

from ebpflb.dataplane.layout.structs import LbTuple, Struct, u8, u16, u32
from ebpflb.model.address import Family, Protocol
from tests.bpf.harness.datapath import flow_tuple
from tests.bpf.harness.loading import Loaded, load_wrapper
from tests.bpf.harness.packets import IPV4, KINDS, End, Kind, built
from tests.bpf.harness.programs import prog_test_run
from tests.bpf.harness.strange import NOT_OURS

NEXT, PASS = 0, 1
SOURCE_PORT, TARGET_PORT = 40000, 80
LINK = 14


class Parsed(Struct):
    """struct lb_parsed of the wrapper."""

    _fields_ = (
        ("tuple", LbTuple),
        ("len", u32),
        ("l3", u16),
        ("l4", u16),
        ("header_len", u16),
        ("is_ipv4", u8),
        ("ttl", u8),
        ("tcp_flags", u8),
        ("l2", u8),
        ("pad", u16),
    )


class Parser:
    """lb_parse() on frames."""

    def __init__(self, wrapper: Loaded) -> None:
        self._wrapper = wrapper

    def __call__(self, packet: Packet | bytes) -> Parsed | None:
        """The parsed frame, or None when the programs ignore it."""
        program = self._wrapper.programs["lb_pod_ingress"]
        run = prog_test_run(program, bytes(packet))
        assert run.retval in (NEXT, PASS)
        assert run.packet == bytes(packet)
        value = self._wrapper.maps["lb_parsed"].lookup(bytes(4))
        assert value
        assert len(value) == ctypes.sizeof(Parsed)
        return Parsed.from_buffer_copy(value) if run.retval == NEXT else None


@pytest.fixture(scope="module")
def wrapper(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return load_wrapper(tmp_path_factory.mktemp("bpffs"), "parse.c", ["lb_pod_ingress"])


@pytest.fixture
def parse(wrapper: Loaded) -> Parser:
    return Parser(wrapper)


def frame(kind: Kind, flags: str = "S", **options) -> Packet:
    source, target = End(kind.net.client, SOURCE_PORT), End(kind.net.pod, TARGET_PORT)
    return kind.frame(source, target, flags, **options)


def with_transport(kind: Kind, transport: Packet) -> Packet:
    return built(kind.packet(kind.net.client, kind.net.pod) / transport)


# Parsed


def test_a_packet_is_known_by_its_tuple(parse: Parser, kind: Kind):
    parsed = parse(frame(kind))
    source, target = End(kind.net.client, SOURCE_PORT), End(kind.net.pod, TARGET_PORT)
    assert parsed
    assert parsed.tuple == flow_tuple(source, target, kind.proto)


def test_offsets_and_lengths_are_those_of_the_headers(parse: Parser, kind: Kind):
    packet = frame(kind)
    parsed = parse(packet)
    network = 20 if kind.net.family is Family.IPV4 else 40
    assert parsed
    assert (parsed.l2, parsed.l3, parsed.l4) == (LINK, LINK, LINK + network)
    assert parsed.len == len(packet) - LINK
    assert parsed.header_len == (20 if kind.proto is Protocol.TCP else 8)
    assert parsed.is_ipv4 == (kind.net.family is Family.IPV4)


@pytest.mark.parametrize("ttl", [0, 1, 64, 255])
def test_the_ttl_is_read(parse: Parser, kind: Kind, ttl: int):
    parsed = parse(frame(kind, ttl=ttl))
    assert parsed
    assert parsed.ttl == ttl


@pytest.mark.parametrize("flags", ["S", "SA", "A", "FA", "R", "PA", "", "FSRPAUEC"])
def test_tcp_flags_are_read(parse: Parser, tcp: Kind, flags: str):
    packet = frame(tcp, flags)
    parsed = parse(packet)
    assert parsed
    assert parsed.tcp_flags == int(packet[TCP].flags) & 0xFF


def test_tcp_options_count_as_header(parse: Parser, tcp: Kind):
    options = [("MSS", 1400), ("SAckOK", b""), ("Timestamp", (1, 2)), ("NOP", None)]
    transport = TCP(sport=SOURCE_PORT, dport=TARGET_PORT, flags="S", options=options)
    packet = with_transport(tcp, transport)
    parsed = parse(packet)
    assert parsed
    assert parsed.header_len == len(packet[TCP]) > 20


@pytest.mark.parametrize("ports", [(0, 0), (65535, 65535), (1, 256)])
def test_ports_of_any_value_are_read(parse: Parser, kind: Kind, ports: tuple[int, int]):
    transport = kind.transport(sport=ports[0], dport=ports[1])
    parsed = parse(with_transport(kind, transport))
    assert parsed
    assert (parsed.tuple.sport, parsed.tuple.dport) == ports


def test_padding_of_a_short_frame_does_not_matter(parse: Parser, kind: Kind):
    assert parse(bytes(frame(kind, payload=b"")) + bytes(40)) is not None


def test_the_dont_fragment_bit_does_not_make_a_fragment(parse: Parser):
    packet = frame(Kind(IPV4, Protocol.UDP))
    packet.payload.flags = "DF"
    assert parse(packet) is not None


# Ignored


@pytest.mark.parametrize("packet", NOT_OURS.values(), ids=NOT_OURS)
def test_other_packets_are_left_alone(parse: Parser, packet: Packet):
    assert parse(packet) is None


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_frame_that_ends_inside_its_headers_is_left_alone(parse: Parser, kind: Kind):
    # The kernel refuses to test-run frames without a complete network header: see
    # test_malformed.py.
    whole = bytes(frame(kind, payload=b""))
    network = 20 if kind.net.family is Family.IPV4 else 40
    for length in range(LINK + network, len(whole)):
        assert parse(whole[:length]) is None, length
    assert parse(whole) is not None
