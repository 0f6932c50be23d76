# SPDX-License-Identifier: Apache-2.0
"""A client has so many open connections, and opens so many new ones."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address

import pytest
from scapy.packet import Packet

from ebpflb.dataplane.layout.enums import (
    DescFlag,
    DropReason,
    LimitFlag,
    NetnsFlag,
    SchedulerCode,
)
from ebpflb.dataplane.layout.records import pack_index, unpack_open
from ebpflb.dataplane.layout.structs import LbClientKey, LbClientUse
from tests.bpf.dsr.sent import hashed
from tests.bpf.dsr.tunnel import (
    KEY,
    PEER,
    PORT,
    pod_elsewhere,
    pod_here,
    served,
    set_keys,
    wrapped,
)
from tests.bpf.extensions.limited import (
    LIMITED,
    SECOND,
    Limited,
    client_key,
    is_refused,
    limit,
    other,
    put_use,
    silences,
    use_of,
    uses,
)
from tests.bpf.extensions.opening import Opening, age
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import SERVICE, Datapath, Verdict, XdpAction, addr
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV6, End, Kind, mapped, target_of
from tests.bpf.harness.ring import Ring
from tests.bpf.harness.services import (
    client,
    external_ip,
    node_addresses,
    node_port,
    remote_backend,
)
from tests.bpf.xdp.conftest import write_uplinks

CLIENT_OPEN_DROPS = LimitFlag.LB_LIMIT_CLIENT_OPEN_DROPS
CLIENT_NEW_DROPS = LimitFlag.LB_LIMIT_CLIENT_NEW_DROPS
CLIENT_OPEN = DropReason.LB_DROP_CLIENT_OPEN
CLIENT_NEW = DropReason.LB_DROP_CLIENT_NEW
MANY = 50


@silences
def test_a_client_has_so_many_connections(
    datapath: Datapath, ring: Ring, kind: Kind, is_silent: bool
):
    limited = Limited(datapath, kind, client_open=2, flags=CLIENT_OPEN_DROPS * is_silent)
    assert None not in [limited.opens(), limited.opens()]
    ring.take()
    assert is_refused(limited.open()[1]) is not is_silent
    assert [each.reason for each in ring.take()] == [CLIENT_OPEN]
    assert datapath.drops() == {CLIENT_OPEN: 1}
    assert use_of(datapath, kind.net.pod).open == 2
    assert limited.opens(other(kind.net.pod)) is not None


def test_a_client_whose_connection_ends_may_open_another(datapath: Datapath, tcp: Kind):
    limited = Limited(datapath, tcp, client_open=1)
    source, result = limited.open()
    assert limited.opens() is None
    limited.end(source, result.packet)
    assert use_of(datapath, tcp.net.pod).open == 0
    assert limited.opens() is not None


def test_a_client_may_open_its_connection_again(datapath: Datapath, tcp: Kind):
    """With the same port, before the node knows that the first has ended."""
    limited = Limited(datapath, tcp, client_open=1)
    source, first = limited.open()
    tcp_frame = tcp.frame(source, limited.frontend, "A", payload=b"")
    datapath.run("lb_pod_egress", tcp.frame(target_of(first.packet), source, "SA", payload=b""))
    datapath.run("lb_pod_ingress", tcp_frame)
    datapath.run("lb_pod_egress", tcp.frame(target_of(first.packet), source, "RA", payload=b""))
    assert limited.open(source=source)[1].verdict is Verdict.PASS
    assert use_of(datapath, tcp.net.pod).open == 1


@silences
def test_a_client_opens_a_burst_and_then_waits(datapath: Datapath, kind: Kind, is_silent: bool):
    rate = {"interval": 100 * SECOND, "burst": 400 * SECOND}
    limited = Limited(datapath, kind, **rate, flags=CLIENT_NEW_DROPS * is_silent)
    assert None not in [limited.opens() for _ in range(5)]
    assert is_refused(limited.open()[1]) is not is_silent
    assert datapath.drops() == {CLIENT_NEW: 1}
    assert limited.opens(other(kind.net.pod)) is not None


def test_time_gives_back_one_for_each_interval(datapath: Datapath, kind: Kind):
    limited = Limited(datapath, kind, interval=100 * SECOND, burst=400 * SECOND)
    # Room for two intervals, less half of one.
    now = time.monotonic_ns()
    put_use(datapath, kind.net.pod, 5, now + 250 * SECOND)
    assert [limited.opens() is not None for _ in range(3)] == [True, True, False]
    due = use_of(datapath, kind.net.pod).due
    assert due == now + 450 * SECOND


def test_a_client_that_was_idle_has_no_more_than_its_burst(datapath: Datapath, kind: Kind):
    limited = Limited(datapath, kind, interval=100 * SECOND, burst=100 * SECOND)
    put_use(datapath, kind.net.pod, 0, 1)
    assert [limited.opens() is not None for _ in range(3)] == [True, True, False]


def test_a_refused_connection_takes_nothing(datapath: Datapath, kind: Kind):
    limited = Limited(datapath, kind, interval=100 * SECOND, client_open=1)
    limited.opens()
    before = use_of(datapath, kind.net.pod)
    assert [limited.opens() for _ in range(5)] == [None] * 5
    assert use_of(datapath, kind.net.pod) == before


def test_a_connection_that_is_retried_is_no_new_one(datapath: Datapath, tcp: Kind):
    opening = Opening(datapath, tcp, 3, LIMITED | DescFlag.LB_DESC_RETRY)
    limit(datapath, client_open=1, interval=100 * SECOND)
    first = opening.syn()
    due = use_of(datapath, tcp.net.pod).due
    assert opening.unanswered() != first
    assert use_of(datapath, tcp.net.pod) == LbClientUse(1, due)


def test_outside_a_network_is_one_client(datapath: Datapath, node: Node, kind: Kind):
    """A /64 of IPv6, an address of IPv4."""
    node_addresses(datapath, node)
    frontend = external_ip(datapath, kind, others=[remote_backend(datapath, kind)[1]])
    datapath.flag_frontends(LIMITED)
    limit(datapath, client_open=1)
    sources = [client(kind).address, other(client(kind).address)]
    seen = [
        datapath.run(
            "lb_host_ingress",
            kind.frame(End(each, 4000), frontend, "S"),
            ifindex=node.uplink.ifindex,
        )
        for each in sources
    ]
    assert CLIENT_OPEN in datapath.drops() if kind.net is IPV6 else not datapath.drops()
    assert is_refused(seen[1]) if kind.net is IPV6 else seen[1].verdict is Verdict.REDIRECT


def test_the_nodes_own_connections_have_no_limit(datapath: Datapath, asker: Asker, kind: Kind):
    limited = Limited(datapath, kind, client_open=1, interval=100 * SECOND)
    say_who_asks(datapath.maps, NetnsFlag.LB_NETNS_HOST)
    found = [asker.connect(limited.frontend, kind.proto) for _ in range(3)]
    assert limited.frontend not in found
    assert not uses(datapath)


@pytest.mark.parametrize("fields", [{"client_open": 1}, {"interval": SECOND}, {"open": 1}])
def test_pods_under_cover_are_left_to_tc_where_clients_have_limits(
    datapath: Datapath, asker: Asker, tcp: Kind, fields: dict[str, int]
):
    limited = Limited(datapath, tcp, **fields)
    say_who_asks(datapath.maps, NetnsFlag.LB_NETNS_COVERED)
    is_left = asker.connect(limited.frontend, tcp.proto) == limited.frontend
    assert is_left is ("open" not in fields)


# XDP and DSR


def _from_outside(datapath: Datapath, node: Node, frame: bytes) -> tuple[bool, Verdict | None]:
    """Whether XDP sends the packet, or what tc does with it."""
    action, _ = datapath.run_xdp(frame, ifindex=node.uplink.ifindex)
    if action is not XdpAction.PASS:
        return True, None
    retval, _ = datapath.run_bytes("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    return False, Verdict(retval)


def test_what_xdp_sends_is_taken_once_and_what_it_refuses_is_answered_by_tc(
    one_cpu: None, datapath: Datapath, node: Node, kind: Kind
):
    write_uplinks(datapath, node)
    index = remote_backend(datapath, kind)[1]
    frontend = node_port(datapath, kind, [index])
    datapath.flag_frontends(LIMITED)
    limit(datapath, client_open=2, open=2, interval=100 * SECOND, burst=400 * SECOND)
    frames = [bytes(kind.frame(client(kind, port), frontend, "S")) for port in (5000, 5001, 5002)]
    seen = [_from_outside(datapath, node, each) for each in frames]
    assert not seen[2][0]
    assert seen[2][1] is Verdict.REDIRECT
    assert datapath.drops() == {CLIENT_OPEN: 1}
    (use,) = uses(datapath)
    assert use.open == 2
    assert unpack_open(datapath.maps["lb_open"].lookup(pack_index(index)) or b"") == 2
    assert 150 * SECOND < use.due - time.monotonic_ns() < 200 * SECOND


def test_a_tunneled_connection_counts_where_it_is_chosen(datapath: Datapath, node: Node, tcp: Kind):
    node_addresses(datapath, node)
    datapath.settings(dsr_port=PORT)
    set_keys(datapath, KEY)
    index = pod_elsewhere(datapath, tcp)[1]
    frontend = node_port(datapath, tcp, [index])
    datapath.flag_frontends(LIMITED | DescFlag.LB_DESC_DSR)
    limit(datapath, client_open=1)

    def send(port: int, flags: str) -> Verdict:
        frame = tcp.frame(client(tcp, port), frontend, flags, payload=b"")
        return datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex).verdict

    send(5000, "S")
    assert datapath.tunneled() or datapath.short()
    send(5001, "S")
    assert datapath.drops() == {CLIENT_OPEN: 1}
    send(5000, "R")
    send(5001, "S")
    assert datapath.drops() == {CLIENT_OPEN: 1}


# Hostile clients, and what is forgotten


def test_made_up_clients_evict_others_and_nothing_more(datapath: Datapath, udp: Kind):
    limited = Limited(datapath, udp, client_open=3, interval=1)
    limited.open()
    table = datapath.maps["lb_client_uses"]
    first = ip_address(udp.net.pod)
    room = table.max_entries
    made_up = [
        (bytes(LbClientKey(SERVICE, addr(str(first + n)))), bytes(LbClientUse(1, 0)))
        for n in range(1, room + 2000)
    ]
    for pair in made_up:
        table.update(*pair)
    assert len(list(table.items())) <= room
    assert limited.opens() is not None


def test_an_evicted_client_begins_anew_and_is_never_below_zero(datapath: Datapath, tcp: Kind):
    limited = Limited(datapath, tcp, client_open=2)
    opened = [limited.open(), limited.open()]
    datapath.maps["lb_client_uses"].delete(client_key(tcp.net.pod))
    for source, result in opened:
        limited.end(source, result.packet)
    assert not uses(datapath)
    later = limited.open()
    assert use_of(datapath, tcp.net.pod).open == 1
    put_use(datapath, tcp.net.pod, 0)
    limited.end(later[0], later[1].packet)
    assert use_of(datapath, tcp.net.pod).open == 0


def test_as_many_as_there_are_cpus_pass_where_one_may_and_all_are_noted(
    datapath: Datapath, udp: Kind
):
    limited = Limited(datapath, udp, client_open=MANY, interval=SECOND, burst=10**6 * SECOND)
    cpus = sorted(os.sched_getaffinity(0))
    frames = [
        [udp.frame(limited.sessions.source(), limited.frontend) for _ in range(2 * MANY)]
        for _ in cpus
    ]
    begun = time.monotonic_ns()
    with ThreadPoolExecutor(len(cpus)) as pool:
        passed = sum(
            pool.map(lambda each: _passes(datapath, *each), zip(cpus, frames, strict=True))
        )
    assert MANY <= passed < MANY + len(cpus)
    use = use_of(datapath, udp.net.pod)
    assert use.open == passed
    # The first ones of an idle client may begin at the same time.
    assert passed - len(cpus) < (use.due - begun) / SECOND < passed + 1


def _passes(datapath: Datapath, cpu: int, frames: list[Packet]) -> int:
    os.sched_setaffinity(0, [cpu])
    verdicts = [datapath.run("lb_pod_ingress", each).verdict for each in frames]
    return verdicts.count(Verdict.PASS)


def test_an_unanswered_connection_is_open_until_it_is_forgotten(datapath: Datapath, tcp: Kind):
    limited = Limited(datapath, tcp, client_open=1)
    source, _ = limited.open()
    age(datapath, source, limited.frontend, tcp)
    assert limited.open(source=source)[1].verdict is Verdict.PASS
    assert use_of(datapath, tcp.net.pod).open == 1
    assert limited.opens() is None


def test_what_arrives_in_a_tunnel_is_counted_nowhere(datapath: Datapath, node: Node, tcp: Kind):
    """The other node has counted it."""
    node_addresses(datapath, node)
    datapath.settings(dsr_port=PORT)
    set_keys(datapath, KEY)
    datapath.maps["lb_nodes"].update(mapped(PEER[tcp.net]), b"\1")
    pod, index = pod_here(datapath, tcp)
    frontend = served(datapath, tcp, index)
    datapath.flag_frontends(LIMITED)
    limit(datapath, client_open=1, open=1)
    for port in (5000, 5001):
        opening = wrapped(tcp, tcp.frame(client(tcp, port), frontend, "S", payload=b""), pod)
        result = datapath.run("lb_host_ingress", opening, ifindex=node.uplink.ifindex)
        assert target_of(result.packet) == pod
        reset = tcp.frame(pod, client(tcp, port), "RA", payload=b"")
        datapath.run("lb_host_egress", reset, ifindex=node.uplink.ifindex)
    assert not uses(datapath)
    assert unpack_open(datapath.maps["lb_open"].lookup(pack_index(index)) or b"") == 0


def test_a_connection_that_another_node_began_is_no_new_one(
    datapath: Datapath, node: Node, tcp: Kind
):
    """It is open here from its next packet on; from made-up ones nobody has to wait."""
    node_addresses(datapath, node)
    datapath.settings(dsr_port=PORT)
    set_keys(datapath, KEY)
    index = pod_elsewhere(datapath, tcp)[1]
    frontend = served(datapath, tcp, index)
    hashed(datapath, SchedulerCode["LB_SCHEDULER_MAGLEV"], [index] * 7)
    datapath.flag_frontends(LIMITED)
    limit(datapath, interval=100 * SECOND)
    frame = tcp.frame(client(tcp), frontend, "A", payload=b"")
    datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
    assert uses(datapath) == [LbClientUse(1, 0)]
