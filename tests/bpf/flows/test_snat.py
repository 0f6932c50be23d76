# SPDX-License-Identifier: Apache-2.0
"""Source ports of masqueraded flows: allocation, reclaiming, and what happens when none is left."""

import time
from collections import Counter
from itertools import count

import pytest

from ebpflb.dataplane.layout.enums import CtState, DropReason
from ebpflb.dataplane.layout.structs import LbTuple
from ebpflb.model.address import Protocol
from tests.bpf.flows.outside import Outside
from tests.bpf.harness.datapath import SNAT_PORTS, Datapath, Verdict, flow_tuple
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import End, Kind, assert_same, changed, source_of

ONE_PORT = ((2000, 2000), (2000, 2000))
OTHER_PORT = ((3000, 3000), (3000, 3000))


@pytest.fixture
def outside(datapath: Datapath, node: Node, kind: Kind) -> Outside:
    return Outside(datapath, node, kind)


@pytest.fixture
def tcp_outside(datapath: Datapath, node: Node, tcp: Kind) -> Outside:
    return Outside(datapath, node, tcp)


# Allocation


def test_ports_come_from_both_ranges_and_from_nowhere_else(outside: Outside):
    outside.datapath.settings(snat_ports=((2000, 2099), (5000, 5099)))
    ports = Counter(outside.source(10000 + i).port for i in range(4))
    assert set(ports) <= {*range(2000, 2100), *range(5000, 5100)}
    assert max(ports.values()) == 1


def test_every_port_of_the_default_ranges_is_possible(datapath: Datapath, node: Node, udp: Kind):
    outside = Outside(datapath, node, udp)
    # One in 8 of all ports is in the second range, one in 4 below 10,000: of 200 some are.
    ports = {outside.source(10000 + i).port for i in range(200)}
    (first, last), (second_first, second_last) = SNAT_PORTS
    assert all(first <= port <= last or second_first <= port <= second_last for port in ports)
    assert len(ports) == 200
    assert min(ports) < 10000
    assert max(ports) > 61000


def test_the_first_and_the_last_port_of_both_ranges_are_used(outside: Outside):
    datapath, kind = outside.datapath, outside.kind
    datapath.settings(snat_ports=((2000, 2001), (65534, 65535)))
    ports, backend = set(), 1
    for i in range(100):  # As many backends as flows, so that every port is free.
        new = datapath.backend(End(kind.net.remote, 9000 + i), kind.proto)
        datapath.replace_backends(backend, new)
        ports.add(outside.source(10000 + i).port)
        backend = new
    assert ports == {2000, 2001, 65534, 65535}


def test_the_same_port_serves_two_backends(datapath: Datapath, node: Node, kind: Kind):
    outside = Outside(datapath, node, kind)
    datapath.settings(snat_ports=ONE_PORT)
    assert outside.source(10000).port == 2000
    other = datapath.backend(End(kind.net.remote, 9999), kind.proto)
    datapath.replace_backends(1, other)
    assert outside.source(10001).port == 2000
    assert outside.reply_goes_to(End(kind.net.overlay, 2000)) == 10000


# No port left


def test_without_a_free_port_a_new_flow_is_dropped_and_counted(outside: Outside):
    outside.datapath.settings(snat_ports=ONE_PORT)
    source = outside.source(10000)
    outside.datapath.keep_young()
    assert outside.send(10001).verdict is Verdict.DROP
    assert outside.datapath.drops() == {DropReason.LB_DROP_SNAT_PORTS: 1}
    assert len(outside.datapath.short()) == 2
    assert outside.reply_goes_to(source) == 10000


def test_an_established_flow_keeps_its_port(tcp_outside: Outside):
    outside = tcp_outside
    outside.datapath.settings(snat_ports=ONE_PORT)
    source = outside.source(10000)
    outside.reply(source, "SA")
    outside.source(10000, "A")
    assert len(outside.datapath.established()) == 2
    assert outside.send(10001).verdict is Verdict.DROP
    assert outside.source(10000, "PA") == source


def test_a_new_flow_takes_the_port_of_one_that_has_ended(tcp_outside: Outside):
    outside = tcp_outside
    outside.datapath.settings(snat_ports=ONE_PORT)
    source = outside.run_to_its_end(10000)
    assert outside.source(10001) == source
    assert outside.reply_goes_to(source) == 10001


def test_a_port_that_the_backend_may_have_in_time_wait_is_left_alone(tcp_outside: Outside):
    # Enough ports that five consecutive random tries all miss them once in 10^12 runs.
    tcp_outside.datapath.settings(snat_ports=((2000, 29999), (33000, 62999)))
    ended = [tcp_outside.run_to_its_end(10000 + number).port for number in range(100)]
    assert len(set(ended)) == len(ended)


def meet_time_wait(outside: Outside, port: int) -> End:
    """A SYN that the backend answers from TIME_WAIT; returns its source."""
    source = outside.source(port)
    outside.reply(source, "A")
    assert outside.source(port, "R") == source
    return source


def test_a_syn_that_met_time_wait_comes_again_from_the_port_that_is_free_now(tcp_outside: Outside):
    outside = tcp_outside
    source = meet_time_wait(outside, 10000)

    assert outside.source(10000) == source

    outside.reply(source, "SA")
    outside.source(10000, "A")
    assert len(outside.datapath.established()) == 2
    assert not outside.datapath.short()


def test_where_resets_end_no_time_wait_another_port_is_tried(tcp_outside: Outside):
    outside = tcp_outside
    source = meet_time_wait(outside, 10000)
    assert meet_time_wait(outside, 10000) == source
    outside.datapath.settings(snat_ports=OTHER_PORT)
    assert outside.source(10000).port == 3000


def test_a_client_that_the_backend_refused_starts_over(tcp_outside: Outside):
    outside = tcp_outside
    source = outside.source(10000)
    outside.reply(source, "RA")
    outside.datapath.settings(snat_ports=OTHER_PORT)
    assert outside.source(10000).port == 3000


def test_a_flow_whose_port_was_taken_is_deleted_completely(tcp_outside: Outside):
    outside = tcp_outside
    outside.datapath.settings(snat_ports=ONE_PORT)
    outside.run_to_its_end(10000)
    outside.source(10001)
    packet = outside.kind.frame(outside.client(10000), outside.frontend, "A")
    result = outside.datapath.run("lb_host_ingress", packet, ifindex=outside.node.uplink.ifindex)
    assert result.verdict is Verdict.PASS
    assert_same(result.packet, packet)


def test_a_busy_node_port_does_not_run_out_of_ports(tcp_outside: Outside):
    outside = tcp_outside
    outside.datapath.settings(snat_ports=ONE_PORT)
    for port in range(10000, 10010):
        outside.run_to_its_end(port)
    assert not outside.datapath.drops()


class HalfOpen:
    """A small port range, each port in use by a half-open connection. `open`: the clients'
    ports.
    """

    def __init__(self, outside: Outside, flags: str) -> None:
        """`flags`: of the backend's reply, if it sent one."""
        self.outside = outside
        outside.datapath.settings(snat_ports=((2000, 2003), (3000, 3003)))
        self.open: dict[int, End] = {}
        ports = count(10000)
        while len(self.open) < 8:
            port = next(ports)
            if outside.send(port).verdict is Verdict.REDIRECT:
                self.open[port] = outside.source(port)
                outside.datapath.keep_young()
        if flags:
            for source in self.open.values():
                outside.reply(source, flags)

    def age(self) -> None:
        """Make them this much older."""
        for key in self.outside.datapath.short():
            self.outside.datapath.write_entry(key, created=1)

    def newcomers(self) -> list[End]:
        """The sources that twenty new connections get."""
        results = [self.outside.send(20000 + number) for number in range(20)]
        sent = [each for each in results if each.verdict is Verdict.REDIRECT]
        return [source_of(each.packet) for each in sent]


@pytest.fixture(params=["", "SA"], ids=["unanswered", "answered"])
def half_open(tcp_outside: Outside, request: pytest.FixtureRequest) -> HalfOpen:
    return HalfOpen(tcp_outside, request.param)


def test_a_new_flow_takes_the_port_of_an_unfinished_handshake(half_open: HalfOpen):
    half_open.age()
    source = half_open.outside.source(20000)
    assert source in half_open.open.values()
    assert half_open.outside.reply_goes_to(source) == 20000
    (left,) = [port for port, each in half_open.open.items() if each == source]
    assert half_open.outside.send(left, "A").verdict is Verdict.PASS


def test_a_handshake_that_has_just_begun_keeps_its_port(half_open: HalfOpen):
    assert not half_open.newcomers()


def test_established_flows_keep_their_ports_among_half_open_ones(tcp_outside: Outside):
    half_open = HalfOpen(tcp_outside, "SA")
    established = dict(list(half_open.open.items())[:4])
    for port in established:
        tcp_outside.source(port, "A")
    half_open.age()
    assert half_open.newcomers()
    assert not set(half_open.newcomers()) & set(established.values())
    assert {port: tcp_outside.source(port, "PA") for port in established} == established


def test_a_flow_that_found_no_room_among_established_ones_keeps_its_port(tcp_outside: Outside):
    table = tcp_outside.datapath.maps["lb_conntrack"]
    full = [bytes(LbTuple(sport=port)) for port in range(SIZES.conntrack)]
    table.update_batch([(key, bytes(table.value_size)) for key in full])
    half_open = HalfOpen(tcp_outside, "SA")
    for port in half_open.open:
        tcp_outside.source(port, "A")
    half_open.age()
    assert not half_open.newcomers()


def test_an_idle_udp_flow_gives_its_port_away(datapath: Datapath, node: Node, udp: Kind):
    outside = Outside(datapath, node, udp)
    datapath.settings(snat_ports=ONE_PORT, udp_timeout=10, udp_stream_timeout=10)
    source = outside.source(10000)
    datapath.keep_young()
    assert outside.send(10001).verdict is Verdict.DROP
    for key in datapath.short():
        datapath.write_entry(key, last_seen=1)
    assert outside.source(10001) == source
    assert outside.reply_goes_to(source) == 10001


class FewPorts:
    """Four UDP flows use all available ports."""

    def __init__(self, outside: Outside) -> None:
        self.outside = outside
        outside.datapath.settings(
            snat_ports=((2000, 2001), (3000, 3001)), udp_timeout=30, udp_stream_timeout=120
        )
        self.sources: dict[int, End] = {}
        port = 10000
        while len(self.sources) < 4:
            result = outside.send(port)
            if result.verdict is Verdict.REDIRECT:
                self.sources[port] = source_of(result.packet)
                outside.datapath.keep_young()
            port += 1
        self.oldest, *_ = self.sources

    def silent(self, port: int, seconds: float, *, reply_only: bool = False) -> None:
        """Make the last packet of a flow this much older."""
        outside = self.outside
        there = flow_tuple(outside.client(port), outside.frontend, Protocol.UDP)
        back = flow_tuple(outside.backend, self.sources[port], Protocol.UDP)
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for key in (back,) if reply_only else (there, back):
            seen = max(1, now - int(seconds * 1e9))
            outside.datapath.write_entry(key, created=seen, last_seen=seen)


@pytest.fixture
def few_ports(datapath: Datapath, node: Node, udp: Kind) -> FewPorts:
    return FewPorts(Outside(datapath, node, udp))


def test_where_ports_are_short_the_flow_that_is_silent_for_longest_loses_its_own(
    few_ports: FewPorts,
):
    outside = few_ports.outside
    for number, port in enumerate(few_ports.sources):
        few_ports.silent(port, 20 - 3 * number)
    # Random tries may miss a port; if there are many, the oldest is reclaimed first.
    taken = Counter[End]()
    for client in range(20000, 20020):
        result = outside.send(client)
        assert result.verdict is Verdict.REDIRECT
        source = source_of(result.packet)
        taken[source] += 1
        assert outside.reply_goes_to(source) == client
        (old,) = [port for port, each in few_ports.sources.items() if each == source]
        few_ports.sources[client] = few_ports.sources.pop(old)
        few_ports.silent(client, 3)
    assert len(taken) == 4


@pytest.mark.parametrize("reply_only", [False, True])
def test_a_udp_flow_with_a_packet_a_moment_ago_keeps_its_port(
    few_ports: FewPorts, reply_only: bool
):
    for port in few_ports.sources if reply_only else ():
        few_ports.silent(port, 60, reply_only=True)
    assert few_ports.outside.send(20000).verdict is Verdict.DROP


def test_streams_keep_their_ports(few_ports: FewPorts):
    outside = few_ports.outside
    for port, source in few_ports.sources.items():
        few_ports.silent(port, 20)
        assert outside.reply_goes_to(source) == port
        few_ports.silent(port, 20)
    assert len(outside.datapath.established()) == 8
    outside.datapath.clear("lb_count_drop")
    assert outside.send(20000).verdict is Verdict.DROP
    assert outside.datapath.drops() == {DropReason.LB_DROP_SNAT_PORTS: 1}


# Flows with one entry missing


def reply_key(outside: Outside, source: End):
    return flow_tuple(outside.backend, source, outside.kind.proto)


def test_a_half_open_flow_that_lost_its_reply_starts_over(outside: Outside):
    source = outside.source(10000)
    outside.datapath.delete_entry(reply_key(outside, source))
    again = outside.source(10000)
    assert outside.reply_goes_to(again) == 10000
    assert len(outside.datapath.short()) == 2


def test_a_packet_of_a_flow_that_lost_its_reply_is_not_sent(tcp_outside: Outside):
    outside = tcp_outside
    source = outside.source(10000)
    outside.datapath.delete_entry(reply_key(outside, source))
    assert outside.send(10000, "A").verdict is Verdict.PASS


def test_two_flows_never_share_a_port_after_one_lost_its_reply(outside: Outside):
    outside.datapath.settings(snat_ports=ONE_PORT)
    source = outside.source(10000)
    outside.datapath.delete_entry(reply_key(outside, source))
    assert outside.source(10001) == source
    assert outside.send(10000).verdict is Verdict.DROP
    assert outside.reply_goes_to(source) == 10001


def ended_and_begun(outside: Outside) -> tuple[End, End]:
    """The sources of a client's old connection and of its new one, which has another port."""
    outside.datapath.settings(snat_ports=ONE_PORT)
    old = outside.run_to_its_end(10000)
    outside.datapath.settings(snat_ports=OTHER_PORT)
    return old, outside.source(10000)


def test_a_port_that_a_client_left_is_taken_without_its_new_flow(tcp_outside: Outside):
    outside = tcp_outside
    left, new = ended_and_begun(outside)
    outside.datapath.settings(snat_ports=ONE_PORT)

    assert outside.source(10001) == left

    assert outside.reply_goes_to(new) == 10000
    assert outside.source(10000) == new


def test_a_late_reset_of_an_old_flow_does_not_close_the_new_one(tcp_outside: Outside):
    outside = tcp_outside
    old, new = ended_and_begun(outside)
    outside.reply(new, "SA")
    outside.source(10000, "A")

    outside.reply(old, "R")

    entry = outside.datapath.entry(outside.client(10000), outside.frontend, Protocol.TCP)
    assert not entry.whole_state & CtState.LB_CT_CLOSED
    assert len(outside.datapath.established()) == 2


def test_the_reply_shows_the_client_the_node_port(outside: Outside):
    source = outside.source(10000)
    reply = outside.kind.frame(outside.backend, source, "SA")
    answered = outside.reply(source, "SA")
    macs = (answered.src, answered.dst)
    expected = changed(
        reply, source=outside.frontend, target=outside.client(10000), hops=1, macs=macs
    )
    assert_same(answered, expected)
