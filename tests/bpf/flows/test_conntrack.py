# SPDX-License-Identifier: Apache-2.0
"""A TCP flow's life: half-open, established, closed, and reopened by a new SYN."""

import pytest
from scapy.layers.inet import TCP

from ebpflb.dataplane.layout.enums import CtState, SettingFlag
from ebpflb.dataplane.layout.structs import LbTuple
from tests.bpf.flows.flow import ACK, CLOSED, ESTABLISHED, SYN, Flow
from tests.bpf.harness.datapath import Datapath, Verdict, flow_tuple, frontend_key
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.packets import PAYLOAD, SEQUENCE, End, Kind, assert_same, changed
from tests.bpf.harness.services import CLIENT_PORT, cluster_ip

# Acknowledges all of a SYN of these tests, or a FIN.
ANSWER_END = SEQUENCE + len(PAYLOAD) + 1
FIN_END = ANSWER_END


def backends(datapath: Datapath, kind: Kind, count: int = 60) -> list[int]:
    return [datapath.backend(End(kind.net.remote, 8000 + i), kind.proto) for i in range(count)]


@pytest.fixture
def choosing(datapath: Datapath, tcp: Kind) -> Flow:
    """A flow with many backends to choose from."""
    frontend = cluster_ip(datapath, tcp, backends(datapath, tcp))
    return Flow(datapath, tcp, frontend, CLIENT_PORT)


# The handshake


def test_a_syn_alone_is_half_open(flow: Flow):
    flow.request("S")
    assert flow.states() == (SYN, CtState(0))
    assert flow.is_short()


def test_a_syn_that_is_answered_is_still_half_open(flow: Flow):
    flow.request("S")
    flow.reply("SA")
    assert flow.states() == (SYN, SYN)
    assert flow.is_short()


def test_the_last_packet_of_the_handshake_moves_both_entries(flow: Flow):
    flow.establish()
    assert flow.states() == (SYN | ACK | ESTABLISHED, SYN | ESTABLISHED)
    assert flow.is_established()


def test_an_acknowledgement_without_an_answer_moves_nothing(flow: Flow):
    flow.request("S")
    flow.request("A")
    assert flow.is_short()


@pytest.mark.parametrize("ack", [12345, ANSWER_END + 1, ANSWER_END - 2**16 - 1, 2**31])
def test_an_acknowledgement_of_what_was_not_sent_moves_nothing(flow: Flow, ack: int):
    """Whoever forged the client's address has not seen the backend's sequence number."""
    flow.request("S")
    flow.reply("SA")
    flow.request("A", ack=ack % 2**32)
    assert flow.states() == (SYN, SYN)
    assert flow.is_short()


@pytest.mark.parametrize("ack", [ANSWER_END, ANSWER_END - 2**16])
def test_an_acknowledgement_within_a_window_establishes(flow: Flow, ack: int):
    flow.request("S")
    flow.reply("SA")
    flow.request("A", ack=ack % 2**32)
    assert flow.is_established()


def test_an_established_flow_goes_on_in_both_directions(flow: Flow):
    flow.establish()
    flow.request("PA")
    flow.reply("PA")
    assert flow.states() == (SYN | ACK | ESTABLISHED, SYN | ACK | ESTABLISHED)
    assert flow.is_established()


def test_a_moved_entry_keeps_what_it_counted(flow: Flow):
    flow.establish()
    flow.request("PA")
    flow.reply("A")
    original, reply = (
        flow.datapath.entry(flow.pod, flow.frontend, flow.kind.proto),
        flow.datapath.entry(flow.backend, flow.pod, flow.kind.proto),
    )
    assert (original.packets, reply.packets) == (3, 2)
    assert original.created <= original.last_seen


def test_with_a_full_table_a_flow_stays_half_open_and_works(flow: Flow):
    datapath = flow.datapath
    entry = bytes(datapath.maps["lb_conntrack"].value_size)
    others = [(bytes(LbTuple(sport=port)), entry) for port in range(SIZES.conntrack)]
    datapath.maps["lb_conntrack"].update_batch(others)

    flow.establish()
    flow.request("PA")
    flow.reply("PA")

    assert flow.is_short()
    assert flow.states() == (SYN | ACK, SYN | ACK)


def test_while_the_table_is_replaced_a_flow_stays_half_open_and_works(flow: Flow):
    flow.datapath.settings(flags=SettingFlag.LB_SETTING_HOLD)
    flow.establish()
    flow.reply("PA")
    assert flow.is_short()
    flow.datapath.settings()
    flow.request("PA")
    assert flow.is_established()


def test_a_flow_moves_as_soon_as_there_is_room(flow: Flow):
    table = flow.datapath.maps["lb_conntrack"]
    others = [bytes(LbTuple(sport=port)) for port in range(SIZES.conntrack - 1)]
    table.update_batch([(key, bytes(table.value_size)) for key in others])
    flow.establish()
    assert flow.is_short()

    table.delete_batch(others)
    flow.request("A")

    assert flow.is_established()


# The end


def test_one_fin_leaves_the_flow_open(flow: Flow):
    flow.establish()
    flow.request("FA")
    assert flow.is_established()


@pytest.mark.parametrize("pod_first", [True, False], ids=["pod first", "backend first"])
def test_a_flow_is_forgotten_once_both_fins_are_acknowledged(flow: Flow, pod_first: bool):
    flow.establish()
    first, second = (flow.request, flow.reply) if pod_first else (flow.reply, flow.request)
    first("FA")
    second("FA", FIN_END)
    assert flow.is_established()
    assert all(state & CLOSED for state in flow.states())
    first("A", FIN_END)
    assert not flow.keys & {*flow.datapath.established(), *flow.datapath.short()}


def test_an_acknowledgement_that_does_not_cover_the_fin_forgets_nothing(flow: Flow):
    flow.establish()
    flow.request("FA")
    flow.reply("FA", FIN_END)
    flow.request("A", FIN_END - 1)
    assert flow.is_established()


def test_a_half_closed_flow_goes_on_in_the_other_direction(flow: Flow):
    flow.establish()
    flow.request("FA")
    flow.reply("A", FIN_END)
    flow.reply("PA", FIN_END)
    assert flow.is_established()
    assert not any(state & CLOSED for state in flow.states())


def test_the_last_packet_of_a_flow_still_arrives(flow: Flow):
    flow.establish()
    flow.request("FA")
    flow.reply("FA", FIN_END)
    assert flow.request("A", FIN_END) == flow.backend


@pytest.mark.parametrize("by_pod", [True, False], ids=["by the pod", "by the backend"])
def test_a_reset_closes_the_flow(flow: Flow, by_pod: bool):
    flow.establish()
    (flow.request if by_pod else flow.reply)("R")
    assert flow.is_short()
    assert all(state & CLOSED for state in flow.states())


def test_a_refused_connection_is_closed(flow: Flow):
    flow.request("S")
    flow.reply("RA")
    assert all(state & CLOSED for state in flow.states())


def test_a_fin_of_a_half_open_flow_from_both_sides_closes_it(flow: Flow):
    flow.request("S")
    flow.reply("SA")
    flow.reply("FA")
    flow.request("FA")
    assert all(state & CLOSED for state in flow.states())


def test_a_direct_connection_from_the_port_of_a_closed_flow_is_left_alone(flow: Flow):
    flow.establish()
    flow.request("R")
    accepts = flow.kind.frame(flow.backend, flow.pod, "SA")
    result = flow.datapath.run("lb_pod_egress", accepts)
    assert result.verdict is Verdict.PASS
    assert_same(result.packet, accepts)
    assert not flow.keys & set(flow.datapath.short())


def test_a_direct_connection_is_left_alone_also_when_half_of_the_old_flow_is_lost(flow: Flow):
    flow.establish()
    flow.request("R")
    original = flow_tuple(flow.pod, flow.frontend, flow.kind.proto)
    flow.datapath.delete_entry(original)
    for flags in ("A", "SA", "PA"):
        packet = flow.kind.frame(flow.backend, flow.pod, flags)
        assert_same(flow.datapath.run("lb_pod_egress", packet).packet, packet)


def test_a_connection_without_a_service_from_the_port_of_a_closed_flow_is_left_alone(flow: Flow):
    flow.establish()
    flow.request("R")
    key = frontend_key(flow.frontend, flow.kind.proto)
    flow.datapath.maps["lb_frontends"].delete(bytes(key))
    flow.datapath.address(flow.frontend.address, 0)
    for flags in ("S", "A", "PA"):
        packet = flow.kind.frame(flow.pod, flow.frontend, flags)
        assert_same(flow.datapath.run("lb_pod_ingress", packet).packet, packet)


def test_sequence_numbers_may_pass_zero(flow: Flow):
    flow.establish()
    last = flow.kind.frame(flow.pod, flow.frontend, "FA", payload=b"")
    last[TCP].seq = 0xFFFFFFFF
    flow.datapath.run("lb_pod_ingress", changed(last))
    flow.reply("FA", 0xFFFFFFFF)
    last[TCP].flags, last[TCP].seq, last[TCP].ack = "A", 0, FIN_END
    flow.datapath.run("lb_pod_ingress", changed(last))
    assert flow.is_established()
    flow.reply("A", 0)
    assert not flow.keys & {*flow.datapath.established(), *flow.datapath.short()}


def test_both_sides_may_close_at_once(flow: Flow):
    flow.establish()
    flow.request("FA")
    flow.reply("FA")
    assert flow.is_established()
    flow.request("A", FIN_END)
    assert flow.is_established()
    flow.reply("A", FIN_END)
    assert not flow.keys & {*flow.datapath.established(), *flow.datapath.short()}


# A SYN that matches an entry


def repeat(flow: Flow, times: int = 6) -> set[End]:
    """Where repeated SYNs of this flow go."""
    return {flow.request("S") for _ in range(times)}


def test_a_repeated_syn_keeps_its_backend(choosing: Flow):
    first = choosing.request("S")
    assert repeat(choosing) == {first}


def test_a_repeated_syn_of_an_established_flow_keeps_its_backend(choosing: Flow):
    choosing.establish()
    assert repeat(choosing) == {choosing.backend}


def test_a_repeated_syn_makes_no_new_connection(choosing: Flow):
    repeat(choosing)
    assert choosing.datapath.counts("lb_count_front", 1) == (1, 0, 0)


def close(flow: Flow) -> None:
    flow.establish()
    flow.request("FA")
    flow.reply("FA")


def test_a_syn_from_the_port_of_a_closed_flow_chooses_again(choosing: Flow):
    chosen = set()
    for _ in range(8):
        close(choosing)
        chosen.add(choosing.backend)
    assert len(chosen) > 1


def test_a_new_flow_from_the_port_of_a_closed_one_lives_like_any_other(choosing: Flow):
    close(choosing)
    choosing.establish()
    assert choosing.is_established()
    assert choosing.request("PA") == choosing.backend


def test_a_new_flow_to_the_same_backend_lives_like_any_other(flow: Flow):
    close(flow)
    flow.establish()
    assert flow.is_established()


def move(flow: Flow) -> End:
    """Replace the only backend; returns the new one."""
    end = End(flow.kind.net.local, 9000)
    flow.datapath.replace_backends(1, flow.datapath.backend(end, flow.kind.proto))
    return end


def test_an_established_flow_stays_with_a_backend_that_is_gone(flow: Flow):
    flow.establish()
    move(flow)
    assert flow.request("PA") == flow.backend
    flow.reply("PA")
    assert flow.is_established()


def test_a_half_open_flow_leaves_a_backend_that_is_gone(flow: Flow):
    flow.request("S")
    assert flow.request("S") == flow.backend
    new = move(flow)
    assert flow.request("S") == new


def ask_twice(flow: Flow) -> None:
    """The client retransmits its SYN when no reply arrives."""
    before = flow.backend
    flow.datapath.wait_a_second()
    flow.request("S")
    assert flow.backend == before
    flow.datapath.wait_a_second()
    flow.establish()


def test_a_syn_on_an_established_flow_leaves_a_backend_that_is_gone(flow: Flow):
    flow.establish()
    new = move(flow)
    ask_twice(flow)
    assert flow.backend == new
    assert flow.request("PA") == new
    assert flow.is_established()


def test_a_syn_leaves_a_backend_whose_index_has_another_owner(flow: Flow):
    flow.establish()
    other = End(flow.kind.net.local, 9000)
    flow.datapath.write_backend(1, other, flow.kind.proto, serial=2)
    assert flow.request("PA") == flow.backend
    ask_twice(flow)
    assert flow.backend == other
    assert flow.is_established()


@pytest.mark.parametrize("last", ["reply", "request"])
def test_syns_in_the_name_of_a_client_do_not_end_its_connection_to_a_backend_that_ends(
    flow: Flow, last: str
):
    """The backend answers each with a challenge ACK (RFC 5961)."""
    flow.establish()
    move(flow)
    for _ in range(3):
        assert flow.request("S") == flow.backend
        flow.reply("A")
        if last == "request":
            flow.request("A")
        flow.datapath.wait_a_second()
    assert flow.request("PA") == flow.backend
    assert flow.is_established()


def test_a_backend_that_returns_under_another_index_serves_as_before(flow: Flow):
    flow.establish()
    index = flow.datapath.backend(flow.backend, flow.kind.proto)
    flow.datapath.replace_backends(1, index)
    ask_twice(flow)
    assert flow.is_established()
    entry = flow.datapath.entry(flow.pod, flow.frontend, flow.kind.proto)
    assert entry.backend == index


def test_a_lost_half_is_made_again_by_a_new_syn(flow: Flow):
    flow.request("S")
    reply = flow_tuple(flow.backend, flow.pod, flow.kind.proto)
    flow.datapath.delete_entry(reply)
    flow.establish()
    assert flow.is_established()
