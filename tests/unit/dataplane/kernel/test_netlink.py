# SPDX-License-Identifier: Apache-2.0
import errno
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.dataplane.kernel.netlink import Rtm, Rtnetlink, attribute, attributes, number, text

KINDS = st.integers(0, 0x3FFF)


@given(st.dictionaries(KINDS, st.binary(max_size=300), max_size=10), st.binary(max_size=8))
def test_attributes_survive_the_wire(expected, head):
    body = head + b"".join(attribute(kind, payload) for kind, payload in expected.items())
    assert attributes(body, len(head)) == expected


@given(st.binary(max_size=200))
def test_no_bytes_make_the_parser_hang_or_fail(body):
    attributes(body)


def test_an_attribute_is_padded_and_its_length_does_not_say_so():
    assert attribute(3, b"eth0\0") == struct.pack("=HH", 9, 3) + b"eth0\0\0\0\0"


def test_the_flag_of_a_nested_attribute_is_no_part_of_its_type():
    assert attributes(attribute(0x8000 | 18, b"abcd")) == {18: b"abcd"}


def test_strings_and_numbers_are_read_as_the_kernel_writes_them():
    assert text(b"eth0\0\0") == "eth0"
    assert text(b"") == ""
    assert number(struct.pack("=I", 7)) == 7
    assert number(struct.pack("=H", 258)) == 258
    assert number(b"") == 0


def test_loopback_is_found_and_asked_about():
    with Rtnetlink() as socket:
        names = [attributes(body, 16)[3] for body in socket.dump(Rtm.GETLINK, bytes(16))]
        (again,) = socket.request(Rtm.GETLINK, bytes(16) + attribute(3, b"lo\0"))
    assert b"lo\0" in names
    assert attributes(again, 16)[3] == b"lo\0"


def test_a_refusal_carries_the_errno():
    with Rtnetlink() as socket, pytest.raises(OSError, match="No such device") as caught:
        socket.request(Rtm.GETLINK, struct.pack("=BxHiII", 0, 0, 0x7FFFFFFF, 0, 0))
    assert caught.value.errno == errno.ENODEV


def test_a_refusal_carries_the_kernels_own_words():
    with (
        Rtnetlink() as socket,
        pytest.raises(OSError, match="netns reference is missing") as caught,
    ):
        socket.request(Rtm.GETNSID, bytes(4))
    assert caught.value.strerror == "Invalid argument (Peer netns reference is missing)"


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
def socket_of():
    def socket_of(*datagrams: bytes) -> Rtnetlink:
        with Rtnetlink() as socket:
            socket._socket.close()
            socket._socket = Wire(*datagrams)  # type: ignore[assignment]
            return socket

    return socket_of


def test_a_dump_that_changed_while_it_ran_is_taken_again(socket_of):
    inconsistent = message(16, 1, b"old ", flags=0x10) + message(3, 1, bytes(4))
    consistent = message(16, 2, b"new ") + message(3, 2, bytes(4))
    assert socket_of(inconsistent, consistent).dump(Rtm.GETLINK, b"") == [b"new "]


def test_a_dump_that_keeps_changing_is_given_up(socket_of):
    restless = [message(3, sequence, bytes(4), flags=0x10) for sequence in range(1, 11)]
    with pytest.raises(OSError, match="GETLINK dump kept changing in 10 tries"):
        socket_of(*restless).dump(Rtm.GETLINK, b"")


def test_answers_to_earlier_requests_and_events_are_passed_over(socket_of):
    stale = message(16, 0, b"event") + message(2, 99, bytes(20))
    assert socket_of(stale, message(16, 1, b"mine"), message(2, 1, bytes(20))).request(
        Rtm.GETLINK, b""
    ) == [b"mine"]


def test_a_stream_comes_datagram_by_datagram(socket_of):
    first = message(16, 1, b"a") + bytes(3) + message(16, 9, b"strange")
    socket = socket_of(first, message(16, 1, b"b"), message(3, 1, bytes(4)))
    assert list(socket.stream(Rtm.GETLINK, b"")) == [[b"a"], [b"b"], []]


@pytest.mark.parametrize("kind", [2, 3], ids=["error", "done"])
def test_a_stream_that_fails_on_its_way_says_so(socket_of, kind):
    failure = message(kind, 1, struct.pack("=i", -errno.EPERM), flags=2)
    stream = socket_of(message(16, 1, b"a"), failure).stream(Rtm.GETLINK, b"")
    assert next(stream) == [b"a"]
    with pytest.raises(PermissionError):
        next(stream)


def test_a_stream_that_may_lack_some_says_so_at_its_end(socket_of):
    stream = socket_of(message(16, 1, b"a", flags=0x10), message(3, 1, bytes(4))).stream(1, b"")
    assert [next(stream), next(stream)] == [[b"a"], []]
    with pytest.raises(InterruptedError):
        next(stream)
