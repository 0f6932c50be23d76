# SPDX-License-Identifier: Apache-2.0
import errno
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.dataplane.kernel import ctnetlink
from ebpflb.dataplane.kernel.ctnetlink import (
    Reply,
    add_flows,
    is_led_elsewhere,
    replies,
    reply_of,
    translates_to,
)
from ebpflb.dataplane.kernel.netlink import attributes
from ebpflb.model.address import Protocol, parse_address
from tests.unit.dataplane import conntrack_messages as recorded
from tests.unit.dataplane.kernel.netlink_messages import attribute

TCP, UDP = Protocol.TCP, Protocol.UDP
HERE, LOOPBACK = parse_address("192.0.2.1"), parse_address("127.0.0.1")
HERE6, LOOPBACK6 = parse_address("2001:db8::1"), parse_address("::1")
RECORDED = {
    recorded.TCP_4: Reply(TCP, LOOPBACK, 8080, HERE, 1500),
    recorded.UDP_4: Reply(UDP, LOOPBACK, 8080, HERE, 1500),
    recorded.TCP_6: Reply(TCP, LOOPBACK6, 8080, HERE6, 1508),
    recorded.UDP_6: Reply(UDP, LOOPBACK6, 8080, HERE6, 1502),
    recorded.ENDED_TCP_4: None,
}
FLOW = Reply(TCP, LOOPBACK, 8080, HERE, 1500)
HEAD = bytes(4)
NESTED = 0x8000


def message(
    protocol: int,
    tcp_state: int | None = None,
    ends: bytes = attribute(1, bytes(4)) + attribute(2, bytes(4)),
    ports: bytes = attribute(2, bytes(2)) + attribute(3, bytes(2)),
) -> bytes:
    """A flow as the kernel writes it."""
    proto = attribute(1, bytes([protocol])) + ports
    reply = attribute(NESTED | 1, ends) + attribute(NESTED | 2, proto)
    state = b"" if tcp_state is None else attribute(NESTED | 1, attribute(1, bytes([tcp_state])))
    return HEAD + attribute(NESTED | 2, reply) + attribute(NESTED | 4, state)


@pytest.mark.parametrize(("body", "expected"), RECORDED.items())
def test_what_a_kernel_has_said_is_read(body, expected):
    assert reply_of(body) == expected


@given(st.binary(max_size=300))
def test_no_bytes_make_it_fail(body):
    reply_of(body)


@given(drawn=st.data())
def test_a_damaged_message_gives_a_whole_reply_or_none(drawn):
    body = bytearray(drawn.draw(st.sampled_from(list(RECORDED))))
    for at in drawn.draw(st.lists(st.integers(0, len(body) - 1), max_size=4)):
        body[at] = drawn.draw(st.integers(0, 255))
    reply = reply_of(bytes(body[: drawn.draw(st.integers(0, len(body)))]))
    assert reply is None or (len(reply.source), len(reply.destination)) == (16, 16)


@pytest.mark.parametrize(
    ("body", "is_led_away"),
    [
        (recorded.TCP_4, True),
        (recorded.TCP_6, True),
        (recorded.UDP_4, False),
        (recorded.UDP_6, False),
        (recorded.ENDED_TCP_4, False),
    ],
    ids=["tcp", "tcp6", "udp", "udp6", "ended"],
)
def test_a_connection_that_netfilter_leads_elsewhere_is_known(body, is_led_away):
    assert is_led_elsewhere(body, {HERE, HERE6}) is is_led_away
    assert not is_led_elsewhere(body, {LOOPBACK, LOOPBACK6})


@pytest.mark.parametrize("body", [recorded.TCP_4, recorded.TCP_6])
def test_one_that_it_leaves_where_it_goes_does_not_count(body):
    original, reply = attributes(body, len(HEAD))[1], attributes(body, len(HEAD))[2]
    ends = attributes(attributes(original)[1])
    source, target = ends.keys()
    turned = attribute(source, ends[target]) + attribute(target, ends[source])
    straight = body.replace(
        reply, attribute(NESTED | 1, turned) + reply[len(attribute(1, turned)) :]
    )
    assert len(straight) == len(body)
    assert not is_led_elsewhere(straight, {HERE, HERE6})


@given(st.binary(max_size=300))
def test_no_bytes_are_too_bad_to_look_at(body):
    assert not is_led_elsewhere(body, {HERE})


@pytest.mark.parametrize(
    ("state", "lives"),
    [(0, False), (1, True), (2, True), (3, True), (4, True), (6, True), (7, False), (8, False)],
    ids=["none", "syn-sent", "syn-recv", "open", "fin-wait", "last-ack", "time-wait", "close"],
)
def test_a_tcp_connection_counts_until_it_has_ended(state, lives):
    assert (reply_of(message(TCP, state)) is not None) is lives


@pytest.mark.parametrize(
    ("state", "lives"), [(1, False), (2, True), (4, True), (7, True), (8, False)]
)
def test_an_association_counts_until_it_has_ended(state, lives):
    part = attribute(NESTED | 4, attribute(NESTED | 3, attribute(1, bytes([state]))))
    assert (reply_of(message(Protocol.SCTP) + part) is not None) is lives


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(message(TCP), id="tcp without a state"),
        pytest.param(message(1), id="icmp"),
        pytest.param(message(UDP, ports=b""), id="no ports"),
        pytest.param(message(UDP, ports=attribute(2, b"\1") + attribute(3, b"\1")), id="narrow"),
        pytest.param(message(UDP, ends=attribute(1, bytes(4))), id="no destination"),
        pytest.param(message(UDP, ends=attribute(3, b"\1") + attribute(4, b"\1")), id="short ip"),
    ],
)
def test_what_is_no_whole_flow_is_left_out(body):
    assert reply_of(body) is None


def test_all_flows_of_a_dump_are_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(ctnetlink, "_COUNT", counted(tmp_path, "2\n"))
    monkeypatch.setattr(ctnetlink, "Netlink", FakeNetlink)
    expected = RECORDED[recorded.TCP_4], RECORDED[recorded.UDP_6]
    assert list(replies()) == [[expected[0]], [expected[1]]]


def test_a_dump_says_whether_netfilter_translates_to_an_address(monkeypatch, tmp_path):
    monkeypatch.setattr(ctnetlink, "_COUNT", counted(tmp_path, "2\n"))
    monkeypatch.setattr(ctnetlink, "Netlink", FakeNetlink)
    assert translates_to({HERE})
    assert not translates_to({HERE6, LOOPBACK})


@pytest.mark.parametrize("count", ["0\n", None])
def test_where_nothing_is_tracked_nothing_is_asked(monkeypatch, tmp_path, count):
    monkeypatch.setattr(ctnetlink, "_COUNT", counted(tmp_path, count))
    monkeypatch.setattr(ctnetlink, "Netlink", None)
    assert list(replies()) == []
    assert not translates_to({HERE})


def counted(directory: Path, text: str | None) -> Path:
    """What the kernel says how many flows there are; None: no such file."""
    path = directory / "nf_conntrack_count"
    if text is not None:
        path.write_text(text)
    return path


class FakeNetlink:
    """A kernel with an open and an ended flow, and one more in another datagram."""

    def __init__(self, protocol: int) -> None:
        assert protocol == 12

    def __enter__(self) -> "FakeNetlink":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def stream(self, kind: int, body: bytes) -> list[list[bytes]]:
        assert (kind, body) == (0x101, struct.pack("=BBH", 0, 0, 0))
        return [[recorded.TCP_4, recorded.ENDED_TCP_4], [recorded.UDP_6]]


class Taking:
    """A kernel that receives flows, and refuses some with an errno."""

    def __init__(self, *refusals: int) -> None:
        self.refusals = list(refusals)
        self.told: list[bytes] = []

    def __call__(self, protocol: int) -> "Taking":
        assert protocol == 12
        return self

    def __enter__(self) -> "Taking":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create(self, kind: int, body: bytes) -> None:
        assert kind == 0x100
        self.told.append(body)
        if self.refusals and (refusal := self.refusals.pop(0)):
            raise OSError(refusal, "refused")


@pytest.fixture
def taking(monkeypatch, tmp_path):
    def make(*refusals: int) -> Taking:
        monkeypatch.setattr(ctnetlink, "_COUNT", counted(tmp_path, "0\n"))
        kernel = Taking(*refusals)
        monkeypatch.setattr(ctnetlink, "Netlink", kernel)
        return kernel

    return make


@pytest.mark.parametrize(
    "flow", [each for each in RECORDED.values() if each], ids=lambda flow: f"{flow.port}"
)
def test_a_flow_is_reported_as_the_kernel_reports_it(taking, flow):
    kernel = taking()
    assert add_flows([flow], 150) == 1
    (body,) = kernel.told
    assert reply_of(body) == flow
    assert body[0] == (2 if flow.source in (HERE, LOOPBACK) else 10)
    found = attributes(body, 4)
    assert (found[3], found[7]) == (bytes([0, 0, 0, 0xE]), (150).to_bytes(4, "big"))
    original = attributes(attributes(found[1])[2])
    assert int.from_bytes(original[2], "big") == flow.port


def test_flows_that_another_one_is_in_the_way_of_are_left_out(taking):
    kernel = taking(0, errno.EEXIST, errno.EBUSY, 0)
    assert add_flows([FLOW] * 4, 150) == 2
    assert len(kernel.told) == 4
    taking(errno.EPERM)
    with pytest.raises(PermissionError):
        add_flows([FLOW], 150)


def test_where_nothing_is_tracked_nothing_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(ctnetlink, "_COUNT", counted(tmp_path, None))
    monkeypatch.setattr(ctnetlink, "Netlink", None)
    assert add_flows([FLOW], 150) == 0
