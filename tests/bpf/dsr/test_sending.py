# SPDX-License-Identifier: Apache-2.0
"""The client's node chooses the backend and forwards the client's packets unchanged."""

import time
from typing import Any

import pytest
from scapy.layers.inet import TCP
from scapy.layers.l2 import Ether
from scapy.packet import Packet

from ebpflb.dataplane.flows.timeouts import tcp_timeout, udp_timeout
from ebpflb.dataplane.layout.enums import (
    BackendFlag,
    CtFlag,
    CtState,
    DescFlag,
    SchedulerCode,
    SettingFlag,
)
from ebpflb.dataplane.layout.structs import LbFailures, LbPathMtu, LbSettings
from ebpflb.dataplane.load.source_text import source_text
from tests.bpf.dsr.sent import assert_sent, hashed
from tests.bpf.dsr.tunnel import KEY, OVERHEAD, PORT, arrive, pod_elsewhere, served, unwrapped
from tests.bpf.harness.datapath import Datapath, Verdict, XdpAction, assert_untouched
from tests.bpf.harness.errors import TOO_BIG, assert_answered, error
from tests.bpf.harness.fragments import fragments
from tests.bpf.harness.loading import Loaded, load
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind, changed, mapped, with_df
from tests.bpf.harness.services import (
    client,
    cluster_ip,
    local_backend,
    node_addresses,
    node_port,
    pod,
    remote_backend,
)

MTU = 1500
ROUTER = {IPV4: "198.51.100.1", IPV6: "2001:db8:100::1"}
SECOND = 1_000_000_000
SECONDS = LbSettings(
    tcp_opening_timeout=240,
    tcp_established_timeout=86400,
    tcp_closed_timeout=240,
    tcp_close_wait_timeout=3600,
    udp_timeout=30,
    udp_stream_timeout=120,
)


def test_a_request_goes_to_the_pods_node_as_it_is(dsr: Datapath, node: Node, kind: Kind):
    to, index = pod_elsewhere(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))

    assert_sent(kind, arrive(dsr, node, request), request, to)

    assert dsr.counts("lb_count_front", 1) == dsr.counts("lb_count_back", index) == (1, 0, 0)
    (entry,) = dsr.short().values()
    assert entry.flags == CtFlag.LB_CT_DSR
    assert not dsr.drops()


def test_a_node_port_goes_there_too(dsr: Datapath, node: Node, kind: Kind):
    to, index = pod_elsewhere(dsr, kind)
    request = kind.frame(client(kind), node_port(dsr, kind, [index]))
    dsr.flag_frontends(DescFlag.LB_DESC_DSR)
    assert_sent(kind, arrive(dsr, node, request), request, to)


def test_a_connection_is_known_from_its_first_packet_to_its_last(
    dsr: Datapath, node: Node, tcp: Kind
):
    to, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    dsr.retire_backend(index)
    dsr.write_backend(index, to, tcp.proto)
    steps = ("S", "A", "PA", "A", "PA", "FA", "A")
    for flags, has_lasted in zip(steps, (0, 0, 0, 1, 1, 0, 0), strict=True):
        frame = tcp.frame(client(tcp), frontend, flags)
        assert_sent(tcp, arrive(dsr, node, frame), frame, to)
        assert len(dsr.tunneled()) == has_lasted, flags
        assert len(dsr.short()) == 1 - has_lasted
        assert not dsr.established()
    assert dsr.states() == {CtState.LB_CT_SYN | CtState.LB_CT_ESTABLISHED | CtState.LB_CT_OTHER_FIN}
    arrive(dsr, node, tcp.frame(client(tcp), frontend, "R"))
    assert dsr.states() == {CtState.LB_CT_SYN | CtState.LB_CT_OTHER_FIN | CtState.LB_CT_CLOSED}
    assert dsr.all_counts("lb_count_front", 1).original.packets == 8
    assert dsr.counts("lb_count_front", 1) == (1, 0, 0)


@pytest.mark.parametrize(
    ("steps", "seconds"),
    [
        (("S", "A"), 240),
        (("S", "S", "S", "S", "S"), 240),
        (("S", "A", "PA", "A"), 86400),
        (("S", "A", "FA", "A"), 3600),
        (("S", "A", "PA", "A", "FA", "A"), 3600),
        (("S", "A", "FA", "R"), 240),
        (("S", "A", "PA", "A", "FA", "R"), 240),
    ],
)
def test_how_long_a_connection_is_remembered(
    dsr: Datapath, node: Node, tcp: Kind, steps: tuple[str, ...], seconds: int
):
    """The pod may send for an hour after a FIN; this node sees only the client's ACKs of that."""
    _, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    for flags in steps:
        arrive(dsr, node, tcp.frame(client(tcp), frontend, flags))
    ((_, entry),) = (dsr.short() | dsr.tunneled()).items()
    assert tcp_timeout(SECONDS, entry.whole_state) == seconds


def test_what_is_over_goes_though_nothing_takes_its_place(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    for flags in ("S", "A", "FA"):
        arrive(dsr, node, kind.frame(client(kind), frontend, flags))
        for key in dsr.short():
            dsr.write_entry(key, created=0)
    ((key, entry),) = (dsr.short() | dsr.tunneled()).items()
    assert entry.state & CtState.LB_CT_ESTABLISHED
    dsr.write_entry(key, last_seen=0)
    dsr.maps["lb_frontends"].delete_batch([each for each, _ in dsr.maps["lb_frontends"].items()])
    arrive(dsr, node, kind.frame(client(kind), frontend))
    assert not dsr.short() | dsr.tunneled()


@pytest.mark.parametrize(("lasted", "seconds"), [(1, 30), (3, 120)])
def test_a_udp_flow_that_lasts_is_a_stream(
    dsr: Datapath, node: Node, udp: Kind, lasted: int, seconds: int
):
    """It outlives the timeout of short flows, which cannot evict it."""
    dsr.settings(dsr_port=PORT, udp_timeout=30, udp_stream_timeout=120)
    _, index = pod_elsewhere(dsr, udp)
    frontend = served(dsr, udp, index)
    frame = udp.frame(client(udp), frontend)
    arrive(dsr, node, frame)
    ((key, _),) = dsr.short().items()
    dsr.write_entry(key, created=time.monotonic_ns() - lasted * SECOND)
    arrive(dsr, node, frame)
    (entry,) = (dsr.tunneled() if seconds == 120 else dsr.short()).values()
    assert udp_timeout(SECONDS, entry.whole_state) == seconds
    for silence, count in ((seconds - 5, 1), (seconds + 5, 2)):
        dsr.write_entry(key, last_seen=time.monotonic_ns() - silence * SECOND)
        arrive(dsr, node, frame)
        assert dsr.counts("lb_count_front", 1)[0] == count


def test_an_open_connection_stays_though_its_pod_is_no_backend_any_more(
    dsr: Datapath, node: Node, tcp: Kind
):
    to, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    for flags in ("S", "A"):
        arrive(dsr, node, tcp.frame(client(tcp), frontend, flags))
    dsr.write_backend(index, End(tcp.net.local, 1), tcp.proto, serial=2)
    dsr.maps["lb_pod_nodes"].delete_batch([key for key, _ in dsr.maps["lb_pod_nodes"].items()])
    frame = tcp.frame(client(tcp), frontend, "PA")
    assert_sent(tcp, arrive(dsr, node, frame), frame, to)


def test_a_new_connection_from_the_same_port_is_chosen_again(dsr: Datapath, node: Node, tcp: Kind):
    _, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    for flags in ("S", "A", "FA", "A", "S"):
        arrive(dsr, node, tcp.frame(client(tcp), frontend, flags))
    assert dsr.states() == {CtState.LB_CT_SYN}
    assert dsr.counts("lb_count_front", 1) == (2, 0, 0)


def test_ejection_counts_nothing_of_what_it_sees_one_way_only(dsr: Datapath, node: Node, tcp: Kind):
    to, index = pod_elsewhere(dsr, tcp)
    dsr.write_backend(index, to, tcp.proto, flags=BackendFlag.LB_BACKEND_WATCHED)
    frontend = served(dsr, tcp, index)
    before = bytes(LbFailures(in_a_row=2))
    dsr.maps["lb_failures"].update(u32(index), before)
    arrive(dsr, node, tcp.frame(client(tcp), frontend, "S"))
    (key,) = dsr.short()
    dsr.write_entry(key, created=dsr.short()[key].created - 2 * 10**9)
    for flags in ("S", "A"):
        arrive(dsr, node, tcp.frame(client(tcp), frontend, flags))
    assert dsr.maps["lb_failures"].lookup(u32(index)) == before
    assert not dict(dsr.maps["lb_clients"].items())


def test_a_pod_without_a_known_node_gets_it_masqueraded(dsr: Datapath, node: Node, kind: Kind):
    to, index = remote_backend(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    result = arrive(dsr, node, request)
    assert result.verdict is Verdict.REDIRECT
    assert (result.packet.payload.src, result.packet.payload.dst) == (
        kind.net.overlay,
        to.address,
    )


def test_a_pod_of_this_node_gets_it_without_a_tunnel(dsr: Datapath, node: Node, kind: Kind):
    to, index = local_backend(dsr, kind)
    request = kind.frame(client(kind), served(dsr, kind, index))
    result = arrive(dsr, node, request)
    assert result.verdict is Verdict.PASS
    assert bytes(result.packet) == bytes(changed(request, target=to))


def test_a_pod_of_this_node_as_the_client_is_masqueraded(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    request = kind.frame(pod(kind), served(dsr, kind, index))
    result = dsr.run("lb_pod_ingress", request, ifindex=node.pod.ifindex)
    assert result.verdict is Verdict.PASS
    assert result.packet.payload.src == kind.net.pod


@pytest.mark.parametrize("known_by", ["lb_nodes", "lb_pod_nodes"])
def test_a_client_of_another_node_is_masqueraded(
    dsr: Datapath, node: Node, kind: Kind, known_by: str
):
    """It may be on the backend's node, or be the backend itself."""
    to, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    dsr.maps[known_by].update(mapped(kind.net.client), b"\1" * dsr.maps[known_by].value_size)
    result = arrive(dsr, node, kind.frame(client(kind), frontend))
    assert result.verdict is Verdict.REDIRECT
    assert result.packet.payload.src == kind.net.overlay
    assert result.packet.payload.dst == to.address


def test_what_does_not_fit_into_the_tunnel_is_too_big(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    headers = len(kind.frame(client(kind), frontend, payload=b"")) - 14
    room = MTU - OVERHEAD[kind.net]
    fits = with_df(kind.frame(client(kind), frontend, payload=bytes(room - headers)))
    assert unwrapped(kind, arrive(dsr, node, fits).packet).packet == bytes(fits.payload)
    for end in (client(kind), client(kind)._replace(port=4001)):
        frame = with_df(kind.frame(end, frontend, payload=bytes(room - headers + 1)))
        assert_answered(arrive(dsr, node, frame), kind, frame, TOO_BIG, room)


def test_what_may_be_fragmented_and_does_not_fit_is_masqueraded(
    dsr: Datapath, node: Node, udp: Kind
):
    """A sender that does not set DF may ignore ICMP errors."""
    to, index = pod_elsewhere(dsr, udp)
    frontend = served(dsr, udp, index)
    large = udp.frame(client(udp), frontend, payload=bytes(MTU - 60))
    small = udp.frame(client(udp), frontend)
    if udp.net is IPV6:
        room = MTU - OVERHEAD[IPV6]
        assert_answered(arrive(dsr, node, large), udp, large, TOO_BIG, room)
        return
    # The stack fragments it.
    result = arrive(dsr, node, large)
    assert result.verdict is Verdict.PASS
    assert result.packet.payload.dst == to.address
    result = arrive(dsr, node, small)
    assert result.verdict is Verdict.REDIRECT
    assert (result.packet.payload.src, result.packet.payload.dst) == (udp.net.overlay, to.address)


def narrow(
    datapath: Datapath, node: Node, kind: Kind, frontend: End, mtu: int, **changes: Any
) -> None:
    """A router between the nodes reports that a tunneled packet is too big."""
    sent = arrive(datapath, node, kind.frame(client(kind), frontend)).packet
    if "key" in changes:
        sent = Ether(bytes(sent).replace(KEY, changes.pop("key")))
    told = error(kind, ROUTER[kind.net], sent, what=TOO_BIG, mtu=mtu, **changes)
    result = arrive(datapath, node, told)
    assert (result.verdict, bytes(result.packet)) == (Verdict.PASS, bytes(told))


def sized(kind: Kind, frontend: End, size: int) -> Packet:
    """A packet of this size that must not be fragmented."""
    headers = len(kind.frame(client(kind), frontend, payload=b"")) - 14
    return with_df(kind.frame(client(kind), frontend, payload=bytes(size - headers)))


def test_what_does_not_fit_between_the_nodes_is_too_big(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    narrow(dsr, node, kind, frontend, 1400)
    room = 1400 - OVERHEAD[kind.net]
    fits, frame = sized(kind, frontend, room), sized(kind, frontend, room + 1)
    assert unwrapped(kind, arrive(dsr, node, fits).packet).packet == bytes(fits.payload)
    assert_answered(arrive(dsr, node, frame), kind, frame, TOO_BIG, room)
    dsr.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500, xdp=True)
    assert dsr.run_xdp(bytes(frame), ifindex=node.uplink.ifindex)[0] is XdpAction.PASS

    narrow(dsr, node, kind, frontend, 1450)
    assert_answered(arrive(dsr, node, frame), kind, frame, TOO_BIG, room)

    ((peer, _),) = dsr.maps["lb_tunnel_mtus"].items()
    told = time.monotonic_ns() - 601 * SECOND
    dsr.maps["lb_tunnel_mtus"].update(peer, bytes(LbPathMtu(told=told, mtu=1400)))
    assert unwrapped(kind, arrive(dsr, node, frame).packet).packet == bytes(frame.payload)


def test_no_path_is_believed_to_be_narrower_than_any_is(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    narrow(dsr, node, kind, frontend, 68)
    room = (576 if kind.net is IPV4 else 1280) - OVERHEAD[kind.net]
    frame = sized(kind, frontend, room + 1)
    assert_answered(arrive(dsr, node, frame), kind, frame, TOO_BIG, room)


@pytest.mark.parametrize("forged", [{"key": bytes(8)}, {"transport": 8}])
def test_who_has_not_seen_the_packet_is_not_believed(
    dsr: Datapath, node: Node, kind: Kind, forged: dict[str, Any]
):
    _, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    narrow(dsr, node, kind, frontend, 1400, **forged)
    assert not list(dsr.maps["lb_tunnel_mtus"].items())


def test_fragments_go_to_the_same_pod(dsr: Datapath, node: Node, udp: Kind):
    to, index = pod_elsewhere(dsr, udp)
    datagram = udp.frame(client(udp), served(dsr, udp, index), payload=bytes(range(256)) * 8)
    for number in (1, 2):
        pieces = fragments(datagram, number=number)
        assert len(pieces) > 1
        for piece in pieces:
            assert_sent(udp, arrive(dsr, node, piece), piece, to)


def test_an_error_about_a_reply_goes_where_the_flow_goes(dsr: Datapath, node: Node, kind: Kind):
    to, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    arrive(dsr, node, kind.frame(client(kind), frontend))
    reply = kind.frame(frontend, client(kind), "PA")
    told = error(kind, "203.0.113.77" if kind.net.family == 4 else "2001:db8::77", reply)
    assert_sent(kind, arrive(dsr, node, told), told, to)


@pytest.fixture(scope="module")
def without_dsr(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """The program of a node without DSR."""
    text = f"#undef LB_HAS_DSR\n#define LB_HAS_DSR 0\n{source_text()}"
    return load(tmp_path_factory.mktemp("bpffs"), text, ["lb_host_ingress"])


def test_what_went_in_tunnels_is_forgotten_when_that_is_switched_off(
    dsr: Datapath, node: Node, tcp: Kind, without_dsr: Loaded
):
    _, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    for flags in ("S", "A"):
        arrive(dsr, node, tcp.frame(client(tcp), frontend, flags))
    later = Datapath(without_dsr)
    later.reset()
    node_addresses(later, node)
    served(later, tcp, remote_backend(later, tcp)[1])
    later.maps["lb_ct_short"].update_batch(list(dsr.maps["lb_ct_short"].items()))
    frame = tcp.frame(client(tcp), frontend, "PA")
    result = arrive(later, node, frame)
    assert result.verdict is Verdict.PASS
    assert bytes(result.packet) == bytes(frame)
    assert not later.short()
    again = arrive(later, node, tcp.frame(client(tcp), frontend))
    assert (again.verdict, again.packet.payload.src) == (Verdict.REDIRECT, tcp.net.overlay)


@pytest.mark.parametrize("scheduler", ["MAGLEV", "SOURCE_HASH"])
def test_a_connection_that_another_node_carried_goes_on(
    dsr: Datapath, node: Node, tcp: Kind, scheduler: str
):
    to, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    frame = tcp.frame(client(tcp), frontend, "PA")
    assert_untouched(dsr, "lb_host_ingress", frame, ifindex=node.uplink.ifindex)

    hashed(dsr, SchedulerCode[f"LB_SCHEDULER_{scheduler}"], [index] * 7)

    for _ in range(5):
        assert_sent(tcp, arrive(dsr, node, frame), frame, to)
    assert len(dsr.tunneled()) == 1


def test_it_does_not_go_on_if_each_node_remembers_clients_on_its_own(
    dsr: Datapath, node: Node, tcp: Kind
):
    _, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7, affinity=60)
    frame = tcp.frame(client(tcp), frontend, "PA")
    assert_untouched(dsr, "lb_host_ingress", frame, ifindex=node.uplink.ifindex)


def test_it_does_not_go_on_to_a_pod_of_this_node_which_would_know_it(
    dsr: Datapath, node: Node, tcp: Kind
):
    _, index = local_backend(dsr, tcp)
    frontend = served(dsr, tcp, index)
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7)
    frame = tcp.frame(client(tcp), frontend, "PA")
    assert_untouched(dsr, "lb_host_ingress", frame, ifindex=node.uplink.ifindex)


@pytest.mark.parametrize("flags", ["SA", "A", "PA", "FA", "R"])
def test_what_may_be_an_answer_to_this_node_is_left_to_it(
    dsr: Datapath, node: Node, tcp: Kind, flags: str
):
    """Also for pods that another NAT masquerades: this node does not know their connections."""
    _, index = pod_elsewhere(dsr, tcp)
    frontend = node_port(dsr, tcp, [index])
    dsr.flag_frontends(DescFlag.LB_DESC_DSR)
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7)
    frame = tcp.frame(client(tcp), frontend, flags)
    assert_untouched(dsr, "lb_host_ingress", frame, ifindex=node.uplink.ifindex)


def test_an_answer_to_the_opening_of_a_connection_never_goes_on(
    dsr: Datapath, node: Node, tcp: Kind
):
    _, index = pod_elsewhere(dsr, tcp)
    frontend = served(dsr, tcp, index)
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7)
    frame = tcp.frame(client(tcp), frontend, "SA")
    assert_untouched(dsr, "lb_host_ingress", frame, ifindex=node.uplink.ifindex)


def test_one_that_does_not_go_on_is_reset_once_nothing_else_knows_it(
    dsr: Datapath, node: Node, tcp: Kind
):
    to, index = pod_elsewhere(dsr, tcp)
    frame = tcp.frame(client(tcp), served(dsr, tcp, index), "PA")
    dsr.settings(flags=SettingFlag.LB_SETTING_RESETS, dsr_port=PORT)
    result = arrive(dsr, node, frame)
    assert (result.verdict, result.packet[TCP].flags) == (Verdict.REDIRECT, "R")
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7)
    assert_sent(tcp, arrive(dsr, node, frame), frame, to)


def test_an_error_about_a_flow_of_another_node_reaches_the_pod(
    dsr: Datapath, node: Node, kind: Kind
):
    """Routers may send it to any node that has the address."""
    to, index = pod_elsewhere(dsr, kind)
    frontend = served(dsr, kind, index)
    reply = kind.frame(frontend, client(kind), "PA")
    told = error(kind, ROUTER[kind.net], reply, mtu=1300, what=TOO_BIG)
    assert_untouched(dsr, "lb_host_ingress", told, ifindex=node.uplink.ifindex)
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7)
    assert_sent(kind, arrive(dsr, node, told), told, to)
    assert not dsr.short()
    assert dsr.counts("lb_count_front", 1) == (0, 0, 0)


def test_an_error_to_a_node_concerns_its_own_flows_alone(dsr: Datapath, node: Node, kind: Kind):
    _, index = pod_elsewhere(dsr, kind)
    frontend = node_port(dsr, kind, [index])
    dsr.flag_frontends(DescFlag.LB_DESC_DSR)
    hashed(dsr, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7)
    told = error(kind, ROUTER[kind.net], kind.frame(frontend, client(kind), "PA"))
    assert_untouched(dsr, "lb_host_ingress", told, ifindex=node.uplink.ifindex)


def test_an_error_about_no_flow_is_neither_dropped_nor_answered(
    dsr: Datapath, node: Node, kind: Kind
):
    served_at = cluster_ip(dsr, kind, [pod_elsewhere(dsr, kind)[1]])
    unknown = served_at._replace(port=served_at.port + 1)
    told = error(kind, ROUTER[kind.net], kind.frame(unknown, client(kind), "PA"))
    assert_untouched(dsr, "lb_host_ingress", told, ifindex=node.uplink.ifindex)
    assert not dsr.drops()
