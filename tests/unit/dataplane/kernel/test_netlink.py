# SPDX-License-Identifier: Apache-2.0
import errno
import struct
from enum import IntEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.dataplane.kernel.netlink import Netlink, attributes, number, text
from tests.unit.dataplane.kernel.netlink_messages import attribute

NETLINK_SOCK_DIAG = 4
KINDS = st.integers(0, 0x3FFF)


class Kind(IntEnum):
    GETLINK = 18
    DIAG_BY_FAMILY = 20


@given(st.dictionaries(KINDS, st.binary(max_size=300), max_size=10), st.binary(max_size=8))
def test_attributes_survive_the_wire(expected, head):
    body = head + b"".join(attribute(kind, payload) for kind, payload in expected.items())
    assert attributes(body, len(head)) == expected


@given(st.binary(max_size=200))
def test_no_bytes_make_the_parser_hang_or_fail(body):
    attributes(body)


def test_the_flag_of_a_nested_attribute_is_no_part_of_its_type():
    assert attributes(attribute(0x8000 | 18, b"abcd")) == {18: b"abcd"}


def test_strings_and_numbers_are_read_as_the_kernel_writes_them():
    assert text(b"eth0\0\0") == "eth0"
    assert text(b"") == ""
    assert number(struct.pack("=I", 7)) == 7
    assert number(struct.pack("=H", 258)) == 258
    assert number(b"") == 0


def test_a_refusal_carries_the_errno():
    with Netlink(0) as netlink, pytest.raises(OSError, match="No such device") as caught:
        netlink.request(Kind.GETLINK, struct.pack("=BxHiII", 0, 0, 0x7FFFFFFF, 0, 0))
    assert caught.value.errno == errno.ENODEV


def test_a_dump_that_the_kernel_ends_with_an_error_is_no_empty_one():
    """pyroute2 0.9.7 takes it for one."""
    unknown_protocol = struct.pack("=BBBxI", 2, 200, 0, 2) + bytes(48)
    with Netlink(NETLINK_SOCK_DIAG) as netlink, pytest.raises(FileNotFoundError):
        netlink.dump(Kind.DIAG_BY_FAMILY, unknown_protocol)


def message(kind: int, sequence: int, body: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack("=IHHII", 16 + len(body), kind, flags, sequence, 0) + body


class Wire:
    """A socket on which the kernel's answers are written in advance."""

    def __init__(self, *datagrams: bytes) -> None:
        self.datagrams = list(datagrams)

    def send(self, request: bytes) -> None:
        pass

    def recv(self, size: int) -> bytes:
        return self.datagrams.pop(0)

    def close(self) -> None:
        pass


@pytest.fixture
def netlink_of():
    def netlink_of(*datagrams: bytes) -> Netlink:
        with Netlink(0) as netlink:
            netlink._socket.close()
            netlink._socket = Wire(*datagrams)  # type: ignore[assignment]
            return netlink

    return netlink_of


def test_a_dump_that_changed_while_it_ran_is_taken_again(netlink_of):
    inconsistent = message(16, 1, b"old ", flags=0x10) + message(3, 1, bytes(4))
    consistent = message(16, 2, b"new ") + message(3, 2, bytes(4))
    assert netlink_of(inconsistent, consistent).dump(Kind.GETLINK, b"") == [b"new "]


def test_a_dump_that_keeps_changing_is_given_up(netlink_of):
    restless = [message(3, sequence, bytes(4), flags=0x10) for sequence in range(1, 11)]
    with pytest.raises(OSError, match="GETLINK dump kept changing in 10 attempts"):
        netlink_of(*restless).dump(Kind.GETLINK, b"")


def test_answers_to_earlier_requests_and_events_are_passed_over(netlink_of):
    stale = message(16, 0, b"event") + message(2, 99, bytes(20))
    answers = message(16, 1, b"mine"), message(3, 1, bytes(4))
    assert netlink_of(stale, *answers).dump(Kind.GETLINK, b"") == [b"mine"]
    refused_before = message(2, 99, struct.pack("=i", -errno.EPERM))
    netlink_of(refused_before, message(2, 1, bytes(20))).request(Kind.GETLINK, b"")


def test_what_is_created_may_be_refused(netlink_of):
    netlink_of(message(2, 1, bytes(20))).create(Kind.GETLINK, b"")
    refusing = netlink_of(message(2, 1, struct.pack("=i", -errno.EEXIST)))
    with pytest.raises(FileExistsError):
        refusing.create(Kind.GETLINK, b"")


def test_a_stream_comes_datagram_by_datagram(netlink_of):
    first = message(16, 1, b"a") + bytes(3) + message(16, 9, b"strange")
    netlink = netlink_of(first, message(16, 1, b"b"), message(3, 1, bytes(4)))
    assert list(netlink.stream(Kind.GETLINK, b"")) == [[b"a"], [b"b"], []]


@pytest.mark.parametrize("kind", [2, 3], ids=["error", "done"])
def test_a_stream_that_fails_on_its_way_says_so(netlink_of, kind):
    failure = message(kind, 1, struct.pack("=i", -errno.EPERM), flags=2)
    stream = netlink_of(message(16, 1, b"a"), failure).stream(Kind.GETLINK, b"")
    assert next(stream) == [b"a"]
    with pytest.raises(PermissionError):
        next(stream)


def test_a_stream_that_may_lack_some_says_so_at_its_end(netlink_of):
    answers = message(16, 1, b"a", flags=0x10), message(3, 1, bytes(4))
    stream = netlink_of(*answers).stream(Kind.GETLINK, b"")
    assert [next(stream), next(stream)] == [[b"a"], []]
    with pytest.raises(InterruptedError):
        next(stream)
