# SPDX-License-Identifier: Apache-2.0
"""To forge the end of a connection in a tunnel, a sender must know the client's next sequence
number: the client's node sees only the client's half of the connection.
"""

from collections.abc import Callable

import pytest
from scapy.layers.inet import TCP

from ebpflb.dataplane.layout.enums import CtState, XdpResult
from ebpflb.dataplane.layout.structs import LbConntrack
from tests.bpf.dsr.sent import LASTING, OPENING, assert_sent
from tests.bpf.dsr.tunnel import arrive, pod_elsewhere, served
from tests.bpf.harness.datapath import Datapath, XdpAction
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, Kind, built, without_checksums
from tests.bpf.harness.services import client

ALL = 1 << 32
# LB_RESET_DISTANCE and LB_IN_FLIGHT of ct_sequence.h.
NEAR, IN_FLIGHT = 1 << 16, 1 << 20
ENDED = CtState.LB_CT_CLOSED | CtState.LB_CT_OTHER_FIN
# The sequence numbers wrap around soon afterwards.
START = ALL - 3

Send = Callable[..., LbConntrack]


@pytest.fixture(params=["tc", "xdp"])
def send(dsr: Datapath, node: Node, tcp: Kind, request: pytest.FixtureRequest) -> Send:
    """Sends a packet of the connection, and returns the state of its flow afterwards."""
    dsr.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500, xdp=True)
    to, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)

    def sent(flags: str, number: int, payload: bytes = b"") -> LbConntrack:
        frame = tcp.frame(client(tcp), frontend, flags, payload=payload)
        frame[TCP].seq = number % ALL
        without_checksums(frame)
        frame = built(frame)
        if request.param == "tc":
            assert_sent(tcp, arrive(dsr, node, frame), frame, to)
        else:
            action, _ = dsr.run_xdp(bytes(frame), ifindex=node.uplink.ifindex)
            assert action is XdpAction.TX, XdpResult(next(iter(dsr.xdp_results())))
        (entry,) = (dsr.short() | dsr.tunneled()).values()
        return entry

    return sent


def begin(send: Send, steps: tuple[str, ...], number: int = START) -> int:
    """The client's next sequence number."""
    for flags in steps:
        text = b"x" if "P" in flags else b""
        send(flags, number, text)
        number += len(text) + ("S" in flags)
    return number


begun = pytest.mark.parametrize("steps", [OPENING, LASTING], ids=["opening", "lasting"])
true_ends = pytest.mark.parametrize("end", ["R", "FA"])


@begun
def test_one_with_a_made_up_number_ends_nothing(send, dsr, steps):
    goes_on = begin(send, steps)
    for far in (NEAR + 1, -NEAR - 1, 1 << 24, -(1 << 24), ALL // 2):
        for end in ("R", "RA", "FA", "F"):
            after = send(end, goes_on + far)
            assert not after.whole_state & ENDED, (end, far)
            assert after.sent_end == goes_on % ALL, (end, far)
    send("A", goes_on)
    assert len(dsr.tunneled()) == 1


@begun
@true_ends
def test_a_true_one_ends_it(send, dsr, steps, end):
    goes_on = begin(send, steps)
    assert send(end, goes_on).whole_state & ENDED
    assert not dsr.tunneled()


@begun
def test_a_packet_far_ahead_prepares_none(send, steps):
    goes_on = begin(send, steps)
    for far in (IN_FLIGHT + 1, ALL // 2, ALL - NEAR - 1):
        for end in ("R", "FA"):
            send("A", goes_on + far)
            assert not send(end, goes_on + far).whole_state & ENDED, (end, far)


@begun
@true_ends
def test_it_ends_though_packets_before_it_were_lost(send, steps, end):
    goes_on = begin(send, steps)
    send("PA", goes_on + IN_FLIGHT, b"x")
    assert send(end, goes_on + IN_FLIGHT + 1 + NEAR).whole_state & ENDED


def test_a_syn_of_another_prepares_no_end_of_one_that_lasts(send):
    goes_on = begin(send, LASTING)
    send("S", goes_on + ALL // 2)
    assert not send("R", goes_on + ALL // 2 + 1).whole_state & ENDED
    assert send("R", goes_on).whole_state & ENDED


def test_a_client_that_begins_again_with_other_numbers_ends_it(send):
    begin(send, OPENING)
    again = begin(send, LASTING, START + ALL // 2)
    assert send("FA", again).whole_state & ENDED


def test_one_of_an_earlier_release_learns_the_numbers(send, dsr):
    """The earlier release's entry has no sequence numbers."""
    goes_on = begin(send, LASTING)
    (key,) = dsr.tunneled()
    dsr.write_entry(key, sent_end=0)
    assert send("A", goes_on).sent_end == goes_on % ALL
    assert not send("R", goes_on + ALL // 2).whole_state & ENDED
