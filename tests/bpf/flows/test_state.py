# SPDX-License-Identifier: Apache-2.0
"""The state of a flow, which two CPUs may write concurrently."""

import pytest
from scapy.layers.inet import TCP

from ebpflb.dataplane.layout.enums import CtState
from ebpflb.dataplane.layout.structs import LbConntrack
from tests.bpf.flows.flow import ACK, CLOSED, ESTABLISHED, SYN, Flow
from tests.bpf.harness.datapath import Datapath, Result, flow_tuple
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import PAYLOAD, SEQUENCE, Kind, changed, source_of, target_of
from tests.bpf.harness.services import CLIENT_PORT, cluster_ip, node_addresses, remote_backend

# The next sequence number of either side in these tests.
SENT = SEQUENCE + len(PAYLOAD)
# Acknowledges a SYN and its data.
OPENED = SENT + 1
# Farther from that than a reset may be.
FAR = 65540
SEQUENCES = [SENT - FAR, SENT + FAR, SENT + (1 << 31)]
BOTH_SIDES = pytest.mark.parametrize("by_pod", [True, False], ids=["by the pod", "by the backend"])


@pytest.fixture
def flow(datapath: Datapath, tcp: Kind) -> Flow:
    frontend = cluster_ip(datapath, tcp, [remote_backend(datapath, tcp)[1]])
    return Flow(datapath, tcp, frontend, CLIENT_PORT)


def test_what_an_ended_flow_left_in_the_wrong_table_does_not_stand_before_a_new_one(flow: Flow):
    """As left by a lost update: closed, but not established."""
    flow.establish()
    table = flow.datapath.maps["lb_conntrack"]
    for key, value in list(table.items()):
        entry = LbConntrack.from_buffer_copy(value)
        entry.state, entry.other_state = entry.state & ~ESTABLISHED, CLOSED
        table.update(key, bytes(entry))
    flow.establish()
    assert flow.is_established()
    assert not any(state & CLOSED for state in flow.states())


def test_each_direction_writes_its_own_byte(flow: Flow):
    flow.establish()
    flow.request("FA")
    flow.reply("FA")
    entry = flow.datapath.entry(flow.pod, flow.frontend, flow.kind.proto)
    assert CtState(entry.state) == SYN | ACK | ESTABLISHED
    assert CtState(entry.other_state) == CtState.LB_CT_OTHER_FIN | CLOSED


# Resets that may be forged


def reset(flow: Flow, by_pod: bool, sequence: int) -> None:
    """A RST with any sequence number arrives and is forwarded."""
    source, target = (flow.pod, flow.frontend) if by_pod else (flow.backend, flow.pod)
    packet = flow.kind.frame(source, target, "R", payload=b"")
    packet[TCP].seq = sequence % (1 << 32)
    program = "lb_pod_ingress" if by_pod else "lb_pod_egress"
    result = flow.datapath.run(program, changed(packet))
    assert target_of(result.packet) == (flow.backend if by_pod else flow.pod)


def go_on(flow: Flow) -> None:
    """Both sides send, the pod last."""
    flow.reply("PA")
    flow.request("A")


@pytest.fixture
def live(flow: Flow) -> Flow:
    """An established flow on which both sides have sent data."""
    flow.establish()
    go_on(flow)
    return flow


@BOTH_SIDES
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_reset_that_no_receiver_accepts_changes_nothing(live: Flow, by_pod, sequence):
    before = live.states()
    reset(live, by_pod, sequence)
    assert live.states() == before
    assert live.is_established()


@BOTH_SIDES
@pytest.mark.parametrize("sequence", [SENT, SENT - 1000, SENT + 1000])
def test_a_reset_that_may_be_accepted_closes_the_flow(live: Flow, by_pod, sequence):
    reset(live, by_pod, sequence)
    assert live.is_short()
    assert all(state & CLOSED for state in live.states())


@BOTH_SIDES
def test_a_reset_is_taken_back_when_both_sides_go_on(live: Flow, by_pod):
    reset(live, by_pod, SENT)
    go_on(live)
    assert live.is_established()
    assert not any(state & CLOSED for state in live.states())
    reset(live, by_pod, SENT)
    assert live.is_short()


@BOTH_SIDES
def test_a_reset_stays_while_only_one_side_goes_on(live: Flow, by_pod):
    reset(live, by_pod, SENT)
    for _ in range(3):
        (live.reply if by_pod else live.request)("PA")
        reset(live, by_pod, SENT)
    assert live.is_short()
    assert all(state & CLOSED for state in live.states())


@BOTH_SIDES
def test_after_a_new_beginning_resets_are_judged_by_it(flow: Flow, by_pod):
    """The client opens another connection from the same port, with other sequence numbers."""
    flow.establish()
    for packet in flow.datapath.established():
        flow.datapath.write_entry(packet, sent_end=(SENT + (1 << 30)) % (1 << 32))
    flow.establish()
    go_on(flow)
    reset(flow, by_pod, SENT)
    assert flow.is_short()


# Forged packets before a reset


def send(flow: Flow, by_pod: bool, flags: str, sequence: int, ack: int) -> None:
    source, target = (flow.pod, flow.frontend) if by_pod else (flow.backend, flow.pod)
    packet = flow.kind.frame(source, target, flags, payload=b"", ack=ack % (1 << 32))
    packet[TCP].seq = sequence % (1 << 32)
    flow.datapath.run("lb_pod_ingress" if by_pod else "lb_pod_egress", changed(packet))


@BOTH_SIDES
@pytest.mark.parametrize("flags", ["A", "FA"])
@pytest.mark.parametrize("sequence", SEQUENCES)
def test_a_packet_whose_sender_does_not_know_the_other_side_prepares_no_reset(
    live: Flow, by_pod, flags, sequence
):
    before = live.states()
    send(live, by_pod, flags, sequence, ack=SENT - 5_000_000)
    reset(live, by_pod, sequence)
    assert live.states() == before
    assert live.is_established()


@BOTH_SIDES
@pytest.mark.parametrize("behind", [0, 100_000])
@pytest.mark.parametrize("sequence", [SENT + FAR, SENT + (1 << 31)])
def test_after_a_gap_resets_are_judged_by_what_came_then(live: Flow, by_pod, sequence, behind):
    """Packets may be lost before they reach this node."""
    send(live, by_pod, "A", sequence, ack=SENT - behind)
    reset(live, by_pod, sequence)
    assert live.is_short()


@BOTH_SIDES
def test_a_fin_behind_a_gap_counts(live: Flow, by_pod):
    send(live, by_pod, "FA", SENT + FAR, ack=SENT)
    assert CtState.LB_CT_OTHER_FIN in live.states()[int(by_pod)]


# Forged packets while a flow opens, or opens again

# Neither a number that was sent nor an acknowledgement of one.
NOWHERE, WRAPS_SOON = SENT + (1 << 30), (1 << 32) - 1000


def shake_hands(flow: Flow, sequence: int) -> None:
    """Both sides send their initial sequence number."""
    send(flow, True, "S", sequence, ack=0)
    send(flow, False, "SA", sequence, ack=sequence + 1)
    send(flow, True, "A", sequence + 1, ack=sequence + 1)


@BOTH_SIDES
def test_a_reset_with_made_up_numbers_does_not_end_a_handshake(flow: Flow, by_pod):
    flow.request("S")
    send(flow, by_pod, "RA", NOWHERE, ack=NOWHERE)
    flow.reply("SA", ack=OPENED)
    flow.request("A")
    assert flow.is_established()


def test_an_endpoint_refuses_a_connection_by_its_number(flow: Flow):
    flow.request("S")
    send(flow, False, "RA", 0, ack=OPENED)
    assert all(state & CLOSED for state in flow.states())


@BOTH_SIDES
def test_a_fin_with_made_up_numbers_does_not_close_what_opens(flow: Flow, by_pod):
    flow.request("S")
    flow.reply("SA", ack=OPENED)
    send(flow, by_pod, "FA", NOWHERE, ack=NOWHERE)
    flow.request("A")
    assert flow.is_established()
    assert not any(state & CtState.LB_CT_OTHER_FIN for state in flow.states())


def test_an_answer_to_another_syn_opens_nothing(flow: Flow):
    flow.request("S")
    send(flow, False, "SA", NOWHERE, ack=NOWHERE)
    send(flow, True, "A", OPENED, ack=NOWHERE + 1)
    assert flow.is_short()


@BOTH_SIDES
def test_numbers_that_wrap_around_soon_protect_as_well(flow: Flow, by_pod):
    flow.request("S")
    shake_hands(flow, WRAPS_SOON)
    before = flow.states()
    reset(flow, by_pod, NOWHERE)
    assert flow.states() == before


@BOTH_SIDES
@pytest.mark.parametrize("flags", ["S", "SA", "SF"])
def test_a_syn_that_answers_none_prepares_no_reset(live: Flow, by_pod, flags):
    send(live, False, flags, NOWHERE, ack=NOWHERE)
    before = live.states()
    reset(live, by_pod, NOWHERE)
    assert live.states() == before
    reset(live, by_pod, SENT)
    assert live.is_short()


def test_a_connection_in_place_of_a_half_closed_one_is_open(live: Flow):
    send(live, True, "FA", SENT, ack=SENT)
    send(live, False, "A", SENT, ack=SENT + 1)
    shake_hands(live, NOWHERE)
    assert live.is_established()
    assert not any(state & CtState.LB_CT_OTHER_FIN for state in live.states())
    send(live, False, "FA", NOWHERE + 1, ack=NOWHERE + 1)
    assert not any(state & CLOSED for state in live.states())


@BOTH_SIDES
def test_a_forged_answer_to_a_late_syn_does_not_hide_the_end(live: Flow, by_pod):
    """The SYN is a delayed duplicate of the client's own; the reply to it is forged."""
    send(live, True, "S", SEQUENCE, ack=0)
    send(live, False, "SA", NOWHERE, ack=NOWHERE)
    send(live, by_pod, "FA", SENT, ack=SENT)
    assert any(state & CtState.LB_CT_OTHER_FIN for state in live.states())
    send(live, not by_pod, "FA", SENT, ack=SENT + 1)
    assert all(state & CLOSED for state in live.states())


def test_a_syn_with_a_fin_opens_nothing(flow: Flow):
    packet = flow.kind.frame(flow.pod, flow.frontend, "SF")
    assert target_of(flow.datapath.run("lb_pod_ingress", packet).packet) == flow.frontend
    assert not flow.datapath.short()


# Addresses that move to another node


def test_an_address_that_moved_to_another_node_opens_flows_from_there(
    datapath: Datapath, node: Node, flow: Flow
):
    """Its old flow, of the same port, never ended."""
    node_addresses(datapath, node)
    flow.establish()

    def send(flags: str) -> Result:
        packet = flow.kind.frame(flow.pod, flow.frontend, flags)
        return datapath.run("lb_host_ingress", packet, ifindex=node.uplink.ifindex)

    opened = send("S")
    assert target_of(opened.packet) == flow.backend
    accepts = flow.kind.frame(flow.backend, source_of(opened.packet), "SA")
    answer = datapath.run("lb_host_ingress", accepts, ifindex=node.overlay.ifindex)
    assert target_of(answer.packet) == flow.pod
    for flags in ("A", "PA"):
        assert target_of(send(flags).packet) == flow.backend
    assert flow_tuple(flow.pod, flow.frontend, flow.kind.proto) in datapath.established()
