# SPDX-License-Identifier: Apache-2.0
"""A connection that its backend refuses or does not answer goes to another one, twice."""

from collections.abc import Callable, Sequence

import pytest
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import (
    BackendFlag,
    CtState,
    DescFlag,
    FlowEnd,
    SchedulerCode,
)
from tests.bpf.dsr.tunnel import KEY, PORT, pod_elsewhere, set_keys
from tests.bpf.extensions.opening import FIRST_PORT, RETRY, Opening, age
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction
from tests.bpf.harness.errors import TIME_EXCEEDED, UNREACHABLE
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import SEQUENCE, End, Kind, target_of
from tests.bpf.harness.ring import Ring
from tests.bpf.harness.services import client, node_addresses, node_port, remote_backend
from tests.bpf.harness.sessions import Sessions

TRIES = 3


@pytest.fixture
def opening(datapath: Datapath, tcp: Kind) -> Opening:
    return Opening(datapath, tcp)


def silence(opening: Opening, backend: End) -> None:
    """The backend does not answer for a second."""
    opening.wait()


def refusal(opening: Opening, backend: End) -> None:
    assert not opening.refuse(backend)


def complaint(opening: Opening, backend: End) -> None:
    assert not opening.complain(backend)


Failure = Callable[[Opening, End], None]
failures = pytest.mark.parametrize("fails", [silence, refusal, complaint])


def tried(opening: Opening, fails: Sequence[Failure]) -> list[End]:
    """The backends of a connection that fails so often."""
    found = [opening.syn()]
    for failure in fails:
        failure(opening, found[-1])
        found.append(opening.syn())
    return found


@failures
def test_three_backends_are_tried_each_once(opening: Opening, fails: Failure):
    found = tried(opening, [fails, fails])
    assert len(set(found)) == TRIES
    front = opening.datapath.all_counts("lb_count_front", 1)
    assert (front.connections, front.retried, front.failed) == (TRIES, 2, 0)
    assert [opening.counted(each) for each in found] == [(1, 1), (1, 1), (1, 0)]
    # Both entries of the last try alone.
    assert len(opening.datapath.short()) == 2


def test_the_last_one_is_silent_for_good(opening: Opening):
    last = tried(opening, [silence, silence])[-1]
    assert opening.unanswered() == last


def test_the_last_one_may_refuse(opening: Opening):
    last = tried(opening, [refusal, silence])[-1]
    assert opening.refuse(last)
    assert opening.datapath.all_counts("lb_count_front", 1).failed == 1


def test_the_last_ones_error_reaches_the_client(opening: Opening):
    assert opening.complain(tried(opening, [refusal, silence])[-1])


@failures
@pytest.mark.parametrize("scheduler", list(SchedulerCode))
def test_of_two_the_other_one_is_tried(
    datapath: Datapath, tcp: Kind, scheduler: SchedulerCode, fails: Failure
):
    opening = Opening(datapath, tcp, 2)
    datapath.schedule_frontends(scheduler)
    one, other = tried(opening, [fails])
    assert one != other
    assert opening.refuse(other)


def test_weights_choose_again_and_then_any_other_comes(datapath: Datapath, tcp: Kind):
    """All slots of the table are of one backend."""
    sessions = Sessions(datapath, tcp)
    heavy, *others = sessions.backends[:3]
    place = sessions.range_of([heavy, *others], [heavy] * 10)
    sessions.change(sessions.frontend, affinity_timeout=0, flags=RETRY, local=place)
    source, found = sessions.source(), []
    for _ in range(TRIES):
        result = datapath.run("lb_pod_ingress", _syn(tcp, source, sessions))
        found.append(sessions.chosen(result.packet))
        age(datapath, source, sessions.frontend, tcp)
    assert (found[0], sorted(found)) == (heavy, [heavy, *others])


def test_a_single_backend_may_refuse(datapath: Datapath, tcp: Kind):
    opening = Opening(datapath, tcp, 1)
    (only,) = opening.indices
    backend = opening.syn()
    assert opening.unanswered() == backend
    assert opening.refuse(backend)
    assert datapath.all_counts("lb_count_back", only).failed == 1


def test_without_the_flag_a_refusal_passes_and_silence_stays(datapath: Datapath, tcp: Kind):
    opening = Opening(datapath, tcp, flags=0)
    backend = opening.syn()
    assert opening.unanswered() == backend
    assert opening.refuse(backend)


def test_a_syn_within_a_second_stays(opening: Opening):
    assert opening.syn() == opening.syn()


@pytest.mark.parametrize("flags", ["SA", "A"])
def test_a_backend_that_has_answered_keeps_the_connection(opening: Opening, flags: str):
    backend = opening.syn()
    opening.answer(backend, flags)
    assert opening.unanswered() == backend
    assert opening.refuse(backend)


def test_an_established_connection_stays(opening: Opening):
    backend = opening.syn()
    opening.answer(backend, "SA")
    frame = opening.kind.frame(opening.pod, opening.frontend, "A", payload=b"")
    opening.datapath.run("lb_pod_ingress", frame)
    assert opening.refuse(backend)


def test_a_late_answer_of_a_backend_does_not_reach_the_client_as_the_services(opening: Opening):
    first, second = tried(opening, [silence])
    late = opening.answer(first, "SA")
    assert late.packet.payload.src == first.address
    assert opening.answer(second, "SA").packet.payload.src == opening.frontend.address


def test_a_reset_that_answers_another_syn_changes_nothing(opening: Opening):
    """It is hidden like a true one: the client would ignore it."""
    backend = opening.syn()
    opening.answer(backend, "RA", SEQUENCE + 10**6)
    assert not opening.datapath.states() & {CtState.LB_CT_CLOSED}
    assert opening.syn() == backend


@pytest.mark.parametrize("what", [UNREACHABLE, TIME_EXCEEDED])
def test_an_error_about_another_syn_changes_nothing(opening: Opening, what: str):
    backend = opening.syn()
    assert opening.complain(backend, what, SEQUENCE + 1)
    assert opening.syn() == backend


def test_records_say_that_it_was_retried(datapath: Datapath, ring: Ring, tcp: Kind):
    opening = Opening(datapath, tcp)
    tried(opening, [silence, refusal])
    ends = [each.end for each in ring.take() if each.end]
    assert ends == [FlowEnd.LB_END_RETRIED] * 2


def test_a_client_with_affinity_moves(datapath: Datapath, tcp: Kind):
    sessions = Sessions(datapath, tcp)
    sessions.change(sessions.frontend, flags=RETRY)
    source = sessions.source()
    first = sessions.chosen(datapath.run("lb_pod_ingress", _syn(tcp, source, sessions)).packet)
    age(datapath, source, sessions.frontend, tcp)
    again = sessions.chosen(datapath.run("lb_pod_ingress", _syn(tcp, source, sessions)).packet)
    assert again != first
    assert sessions.ask() == again


def _syn(tcp: Kind, source: End, sessions: Sessions) -> Packet:
    return tcp.frame(source, sessions.frontend, "S")


def test_backends_on_trial_are_passed_by_too(datapath: Datapath, tcp: Kind):
    opening = Opening(datapath, tcp)
    for index in opening.indices[1:3]:
        value = datapath.backend_at(index)
        flags = value.flags | BackendFlag.LB_BACKEND_TRIAL
        end = End(tcp.net.remote, FIRST_PORT + opening.indices.index(index))
        datapath.write_backend(index, end, tcp.proto, flags=flags)
    found = tried(opening, [silence, silence])
    assert len(set(found)) == TRIES


def test_a_masqueraded_connection_gets_another_port(datapath: Datapath, node: Node, tcp: Kind):
    node_addresses(datapath, node)
    indices = [remote_backend(datapath, tcp)[1]]
    indices.append(datapath.backend(End(tcp.net.remote, FIRST_PORT), tcp.proto))
    frontend = node_port(datapath, tcp, indices)
    datapath.flag_frontends(RETRY)
    frame = tcp.frame(client(tcp), frontend, "S", payload=b"")
    first = datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex).packet
    refusal = tcp.frame(target_of(first), End(first.payload.src, first.sport), "RA", payload=b"")
    hidden = datapath.run("lb_host_ingress", refusal, ifindex=node.overlay.ifindex)
    assert hidden.verdict is Verdict.DROP
    second = datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex).packet
    assert target_of(second) != target_of(first)
    assert len(datapath.short()) == 2
    assert not datapath.drops()


@pytest.mark.usefixtures("node")
def test_xdp_leaves_the_opening_to_tc(datapath: Datapath, node: Node, tcp: Kind):
    node_addresses(datapath, node)
    datapath.device(node.uplink.ifindex, snat4=tcp.net.node, snat6=tcp.net.node, xdp=True)
    frontend = node_port(datapath, tcp, [remote_backend(datapath, tcp)[1]])
    datapath.flag_frontends(RETRY)
    frame = bytes(tcp.frame(client(tcp), frontend, "S"))
    for _ in range(2):
        action, sent = datapath.run_xdp(frame, ifindex=node.uplink.ifindex)
        assert (action, sent) == (XdpAction.PASS, frame)
        datapath.run_bytes("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    assert len(datapath.short()) == 2


def test_a_tunneled_connection_stays(datapath: Datapath, node: Node, tcp: Kind):
    """Its answers do not pass this node."""
    node_addresses(datapath, node)
    datapath.settings(dsr_port=PORT)
    set_keys(datapath, KEY)
    index = pod_elsewhere(datapath, tcp)[1]
    frontend = node_port(datapath, tcp, [index, index])
    datapath.flag_frontends(RETRY | DescFlag.LB_DESC_DSR)
    frame = tcp.frame(client(tcp), frontend, "S", payload=b"")
    datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    age(datapath, client(tcp), frontend, tcp)
    datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    assert datapath.all_counts("lb_count_front", 1).retried == 0
    assert datapath.entry(client(tcp), frontend, tcp.proto).packets == 2
