# SPDX-License-Identifier: Apache-2.0
"""UDP specifics: no handshake, so time ends a flow; zero checksums; host sockets; other senders."""

import socket
import time
from collections.abc import Sequence

import pytest
from scapy.layers.inet import UDP

from ebpflb.dataplane.layout.enums import DropReason, FlowEnd, FlowEvent, IfEmptyCode
from ebpflb.dataplane.layout.structs import LbRange, LbTuple
from ebpflb.model.address import Family
from tests.bpf.harness.datapath import Datapath, Verdict, assert_untouched, flow_tuple, frontend_key
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind, assert_same, built, changed, source_of, target_of
from tests.bpf.harness.ring import Ring
from tests.bpf.harness.services import (
    CLIENT_PORT,
    NODE_PORT,
    cluster_ip,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

TIMEOUT = 10
SECOND = 10**9


# Checksums


def without_checksum(packet):
    packet[UDP].chksum = 0
    return built(packet)


def test_a_checksum_of_zero_stays_zero(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    request = without_checksum(udp.frame(pod(udp), frontend))
    result = datapath.run("lb_pod_ingress", request)
    assert result.packet[UDP].chksum == 0
    assert_same(result.packet, changed(request, target=backend))

    reply = without_checksum(udp.frame(backend, pod(udp)))
    result = datapath.run("lb_pod_egress", reply)
    assert_same(result.packet, changed(reply, source=frontend))


def test_a_checksum_that_becomes_zero_is_written_as_all_ones(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    translated = udp.frame(pod(udp), backend, payload=bytes(2))
    payload = translated[UDP].chksum.to_bytes(2, "big")
    request = udp.frame(pod(udp), frontend, payload=payload)
    result = datapath.run("lb_pod_ingress", request)
    assert result.packet[UDP].chksum == 0xFFFF
    assert_same(result.packet, changed(request, target=backend))


# Time


def age(datapath: Datapath, source: End, target: End, kind: Kind, seconds: float) -> None:
    """Make the last packet of an entry that much older."""
    key = flow_tuple(source, target, kind.proto)
    now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    datapath.write_entry(key, last_seen=max(0, now - int(seconds * SECOND)))


class Talk:
    """A pod that talks to a ClusterIP with many backends."""

    def __init__(self, datapath: Datapath, kind: Kind) -> None:
        self.datapath, self.kind = datapath, kind
        datapath.settings(udp_timeout=TIMEOUT, udp_stream_timeout=TIMEOUT)
        backends = [datapath.backend(End(kind.net.remote, 8000 + i), kind.proto) for i in range(60)]
        self.frontend = cluster_ip(datapath, kind, backends)
        self.backend = self.request()

    def request(self) -> End:
        packet = self.kind.frame(pod(self.kind), self.frontend)
        return target_of(self.datapath.run("lb_pod_ingress", packet).packet)

    def reply_comes_from(self) -> str:
        packet = self.kind.frame(self.backend, pod(self.kind))
        return str(self.datapath.run("lb_pod_egress", packet).packet.payload.src)

    def began(self, seconds: float) -> None:
        """Make the flow begin that much earlier."""
        now = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        for ends in ((pod(self.kind), self.frontend), (self.backend, pod(self.kind))):
            key = flow_tuple(*ends, self.kind.proto)
            self.datapath.write_entry(key, created=max(0, now - int(seconds * SECOND)))

    def become_stream(self) -> None:
        assert self.reply_comes_from() == self.frontend.address
        self.began(5)
        assert self.request() == self.backend

    def table(self, name: str) -> list[bytes]:
        return [key for key, _ in self.datapath.maps[name].items()]

    def chosen(self) -> int:
        return int(self.datapath.entry(pod(self.kind), self.frontend, self.kind.proto).backend)

    def age_request(self, seconds: float) -> None:
        age(self.datapath, pod(self.kind), self.frontend, self.kind, seconds)

    def age_reply(self, seconds: float) -> None:
        age(self.datapath, self.backend, pod(self.kind), self.kind, seconds)


@pytest.fixture
def talk(datapath: Datapath, udp: Kind) -> Talk:
    return Talk(datapath, udp)


def test_a_flow_keeps_its_backend_until_the_timeout(talk: Talk):
    for _ in range(5):
        talk.age_request(TIMEOUT - 5)
        talk.age_reply(TIMEOUT - 5)
        assert talk.request() == talk.backend


def test_a_flow_that_was_idle_for_longer_chooses_again(talk: Talk):
    chosen = set()
    for _ in range(8):
        talk.age_request(TIMEOUT + 1)
        talk.age_reply(TIMEOUT + 1)
        talk.backend = talk.request()
        chosen.add(talk.backend)
    assert len(chosen) > 1


def test_a_late_first_reply_is_reversed_while_the_client_talks(talk: Talk):
    talk.age_reply(10 * TIMEOUT)
    assert talk.reply_comes_from() == talk.frontend.address


def test_a_client_that_only_listens_keeps_its_backend(talk: Talk):
    talk.age_request(10 * TIMEOUT)
    assert talk.reply_comes_from() == talk.frontend.address
    assert talk.request() == talk.backend


def test_a_stream_may_be_silent_for_longer(talk: Talk):
    talk.datapath.settings(udp_timeout=TIMEOUT, udp_stream_timeout=3 * TIMEOUT)
    talk.become_stream()
    for _ in range(5):
        talk.age_request(2 * TIMEOUT)
        talk.age_reply(2 * TIMEOUT)
        assert talk.request() == talk.backend
    talk.age_request(2 * TIMEOUT)
    talk.age_reply(2 * TIMEOUT)
    assert talk.reply_comes_from() == talk.frontend.address
    talk.age_request(4 * TIMEOUT)
    talk.age_reply(4 * TIMEOUT)
    assert talk.reply_comes_from() == talk.backend.address


@pytest.mark.parametrize("last", ["request", "reply_comes_from"])
def test_a_flow_with_answers_that_goes_on_for_longer_than_two_seconds_is_a_stream(
    talk: Talk, last: str
):
    talk.reply_comes_from()
    talk.began(0)
    getattr(talk, last)()
    assert len(talk.table("lb_ct_udp")) == 2
    talk.began(2.5)
    getattr(talk, last)()
    assert (len(talk.table("lb_ct_udp")), len(talk.table("lb_ct_stream"))) == (0, 2)
    assert talk.request() == talk.backend
    assert talk.reply_comes_from() == talk.frontend.address


def test_a_flow_without_answers_never_is_a_stream(talk: Talk):
    talk.began(60)
    assert talk.request() == talk.backend
    assert len(talk.table("lb_ct_udp")) == 2


def test_a_stream_that_finds_no_room_stays_where_it_is(talk: Talk):
    table = talk.datapath.maps["lb_ct_stream"]
    full = [(bytes(LbTuple(sport=port)), bytes(table.value_size)) for port in range(SIZES.ct_udp)]
    table.update_batch(full)
    talk.become_stream()
    assert len(talk.table("lb_ct_udp")) == 2
    assert talk.request() == talk.backend
    table.delete_batch([key for key, _ in full])
    assert talk.reply_comes_from() == talk.frontend.address
    assert len(talk.table("lb_ct_stream")) == 2


def test_a_stream_leaves_a_backend_that_is_gone(talk: Talk):
    talk.become_stream()
    new, index = remote_backend(talk.datapath, talk.kind)
    talk.datapath.replace_backends(talk.chosen(), index)
    assert talk.request() == new
    talk.backend = new
    assert talk.reply_comes_from() == talk.frontend.address


def test_a_flow_without_an_answer_does_not_get_the_time_of_one_with_answers(talk: Talk):
    talk.datapath.settings(udp_timeout=TIMEOUT, udp_stream_timeout=3 * TIMEOUT)
    chosen = set()
    for _ in range(8):
        talk.age_request(2 * TIMEOUT)
        talk.age_reply(2 * TIMEOUT)
        talk.backend = talk.request()
        chosen.add(talk.backend)
    assert len(chosen) > 1


def test_a_reply_after_the_timeout_is_not_reversed(talk: Talk):
    talk.age_request(TIMEOUT + 1)
    talk.age_reply(TIMEOUT + 1)
    assert talk.reply_comes_from() == talk.backend.address


def test_a_packet_that_another_cpu_saw_later_is_not_old(talk: Talk):
    talk.age_request(-1)
    talk.age_reply(-1)
    assert {talk.request() for _ in range(5)} == {talk.backend}


def test_a_flow_leaves_a_backend_that_is_gone(talk: Talk):
    new, index = remote_backend(talk.datapath, talk.kind)
    talk.datapath.replace_backends(talk.chosen(), index)
    assert talk.request() == new
    talk.backend = new
    assert talk.reply_comes_from() == talk.frontend.address


def test_a_flow_stays_with_a_backend_that_serves_without_new_flows(talk: Talk):
    _, index = remote_backend(talk.datapath, talk.kind)
    talk.datapath.replace_backends(talk.chosen(), index, serving=True)
    assert {talk.request() for _ in range(5)} == {talk.backend}
    talk.datapath.retire_backend(talk.chosen())
    assert talk.request() != talk.backend


def test_a_flow_whose_service_has_nothing_left_is_refused_until_there_is_something(talk: Talk):
    key = frontend_key(talk.frontend, talk.kind.proto)
    nothing = LbRange(0, 0, IfEmptyCode.LB_EMPTY_REFUSE)
    talk.datapath.retire_backend(talk.chosen())
    talk.datapath.write_desc(1, key, nothing, nothing)
    packet = talk.kind.frame(pod(talk.kind), talk.frontend)
    assert talk.datapath.run("lb_pod_ingress", packet).verdict is not Verdict.PASS
    assert talk.datapath.drops() == {DropReason.LB_DROP_NO_ENDPOINT: 1}
    new, index = remote_backend(talk.datapath, talk.kind)
    talk.datapath.maps["lb_slots"].update(u32(0), u32(index))
    some = LbRange(0, 1, IfEmptyCode.LB_EMPTY_REFUSE)
    talk.datapath.write_desc(1, key, some, some)
    assert talk.request() == new


def test_a_flow_leaves_a_backend_that_has_another_port_now(talk: Talk):
    index = talk.chosen()
    talk.datapath.write_backend(index, End(talk.kind.net.remote, 9090), talk.kind.proto, serial=2)
    for slot in range(1, 61):
        talk.datapath.maps["lb_slots"].update(u32(slot), u32(index))
    assert talk.request().port == 9090


def test_the_late_reply_of_a_backend_that_is_gone_is_reversed(talk: Talk):
    talk.datapath.retire_backend(talk.chosen())
    assert talk.reply_comes_from() == talk.frontend.address


def test_a_lost_half_is_made_again(talk: Talk):
    key = flow_tuple(talk.backend, pod(talk.kind), talk.kind.proto)
    talk.datapath.delete_entry(key)
    talk.backend = talk.request()
    assert talk.reply_comes_from() == talk.frontend.address


def test_more_flows_than_fit_all_go_on(datapath: Datapath, udp: Kind):
    backend, index = remote_backend(datapath, udp)
    frontend = cluster_ip(datapath, udp, [index])
    template = bytes(without_checksum(udp.frame(pod(udp, 0), frontend)))
    at = template.index(bytes(2) + frontend.port.to_bytes(2, "big"))
    for port in range(10000, 10000 + 2 * SIZES.ct_short):
        request = template[:at] + port.to_bytes(2, "big") + template[at + 2 :]
        result = datapath.run("lb_pod_ingress", request)
        assert (result.verdict, target_of(result.packet)) == (Verdict.PASS, backend)
    assert len(datapath.short()) <= SIZES.ct_short
    assert not datapath.drops()


# Sockets of the host


@pytest.fixture
def peer_socket(udp: Kind):
    """A socket of the host bound to the NodePort's port number."""
    family = socket.AF_INET if udp.net.family is Family.IPV4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as made:
        made.bind((udp.net.node, NODE_PORT))
        yield made


def node_port_request(datapath: Datapath, node: Node, kind: Kind):
    node_addresses(datapath, node)
    _, index = remote_backend(datapath, kind)
    return kind.frame(End(kind.net.client, CLIENT_PORT), node_port(datapath, kind, [index]))


def test_an_answer_to_a_connected_socket_is_no_request(
    datapath: Datapath, node: Node, udp: Kind, peer_socket: socket.socket
):
    request = node_port_request(datapath, node, udp)
    peer_socket.connect(source_of(request))
    assert_untouched(datapath, "lb_host_ingress", request, ifindex=node.uplink.ifindex)


def test_a_socket_that_is_connected_elsewhere_does_not_matter(
    datapath: Datapath, node: Node, udp: Kind, peer_socket: socket.socket
):
    request = node_port_request(datapath, node, udp)
    peer_socket.connect((udp.net.client, CLIENT_PORT + 1))
    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.REDIRECT


def test_a_node_port_wins_over_an_unconnected_socket(
    datapath: Datapath, node: Node, udp: Kind, peer_socket: socket.socket
):
    request = node_port_request(datapath, node, udp)
    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.REDIRECT


def test_a_known_flow_goes_on_beside_a_connected_socket(
    datapath: Datapath, node: Node, udp: Kind, peer_socket: socket.socket
):
    request = node_port_request(datapath, node, udp)
    datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    peer_socket.connect(source_of(request))
    result = datapath.run("lb_host_ingress", request, ifindex=node.uplink.ifindex)
    assert result.verdict is Verdict.REDIRECT


# A Service and its endpoint, asked from one port


class Member:
    """A pod with one unconnected socket, and the endpoint of a Service."""

    def __init__(self, datapath: Datapath, kind: Kind) -> None:
        self._datapath, self._kind = datapath, kind
        self.endpoint, index = remote_backend(datapath, kind)
        self.service = cluster_ip(datapath, kind, [index])

    def ask_service(self) -> None:
        packet = self._kind.frame(pod(self._kind), self.service)
        assert target_of(self._datapath.run("lb_pod_ingress", packet).packet) == self.endpoint

    def ask_endpoint(self) -> None:
        packet = self._kind.frame(pod(self._kind), self.endpoint)
        result = self._datapath.run("lb_pod_ingress", packet)
        assert result.verdict is Verdict.PASS
        assert_same(result.packet, packet)

    def become_stream(self) -> None:
        """Go on with the Service as if its flow had begun long ago."""
        key = flow_tuple(pod(self._kind), self.service, self._kind.proto)
        self._datapath.write_entry(key, created=1)
        self.ask_service()

    def hears(self, times: int = 1) -> Sequence[End]:
        """From whom the endpoint's answers come."""
        answer = self._kind.frame(self.endpoint, pod(self._kind))
        results = [self._datapath.run("lb_pod_egress", answer) for _ in range(times)]
        return [source_of(each.packet) for each in results]


@pytest.fixture
def member(datapath: Datapath, udp: Kind) -> Member:
    return Member(datapath, udp)


def test_who_asked_last_gets_the_answers(member: Member):
    for _ in range(2):
        member.ask_service()
        assert member.hears(2) == [member.service] * 2
        member.ask_endpoint()
        assert member.hears(2) == [member.endpoint] * 2


def test_streams_too(datapath: Datapath, member: Member):
    member.ask_service()
    assert member.hears() == [member.service]
    member.become_stream()
    assert len(list(datapath.maps["lb_ct_stream"].items())) == 2
    member.ask_endpoint()
    assert member.hears() == [member.endpoint]
    assert not list(datapath.maps["lb_ct_stream"].items())


def test_the_flow_to_the_service_ends(ring: Ring, member: Member):
    member.ask_service()
    member.ask_endpoint()
    begun, ended = ring.take()
    assert (begun.event, ended.event) == (FlowEvent.LB_FLOW_START, FlowEvent.LB_FLOW_END)
    assert ended.end == FlowEnd.LB_END_REPLACED
    assert (ended.client_port, ended.original.packets) == (begun.client_port, 1)


def test_another_port_changes_nothing(datapath: Datapath, udp: Kind, member: Member):
    member.ask_service()
    before = datapath.short()
    for source, target in (
        (pod(udp, 40001), member.endpoint),
        (pod(udp), member.endpoint._replace(port=member.endpoint.port + 1)),
    ):
        assert_untouched(datapath, "lb_pod_ingress", udp.frame(source, target))
    assert datapath.short().keys() == before.keys()
    assert member.hears() == [member.service]
