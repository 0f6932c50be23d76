# SPDX-License-Identifier: Apache-2.0
"""Session affinity at tc: which clients keep their backend, for how long, and when not."""

import pytest

from ebpflb.dataplane.layout.enums import DropReason, NetnsFlag
from ebpflb.dataplane.layout.structs import LbAffinity
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import SERVICE, Datapath
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import Kind, target_of
from tests.bpf.harness.services import external_ip, node_addresses
from tests.bpf.harness.sessions import BACKENDS, TIMEOUT, Sessions

TIMES = 15
OTHER_SERVICE = SERVICE + 1
ELSEWHERE = 3
# More seconds than any test takes.
LONG = 100


@pytest.fixture
def sessions(datapath: Datapath, kind: Kind) -> Sessions:
    return Sessions(datapath, kind)


def clients(sessions: Sessions, count: int = TIMES) -> list[str]:
    """Addresses of clients on this node."""
    prefix = sessions.kind.net.pod.removesuffix("5")
    return [f"{prefix}{100 + i}" for i in range(count)]


def external(sessions: Sessions, local: list[int], others: list[int]):
    """An external IP of the same Service port."""
    frontend = external_ip(sessions.datapath, sessions.kind, local, others)
    sessions.change(frontend)
    return frontend


# Sharing between Service ports


def test_new_flows_of_a_client_go_to_one_backend(sessions: Sessions):
    assert len({sessions.ask() for _ in range(TIMES)}) == 1


def test_each_client_has_its_own_backend(sessions: Sessions):
    first = {client: sessions.ask(client=client) for client in clients(sessions)}
    again = {client: sessions.ask(client=client) for client in first}
    assert again == first
    assert len(set(first.values())) > 1


def test_without_affinity_nothing_is_kept(sessions: Sessions):
    sessions.change(sessions.frontend, affinity_timeout=0)
    assert len({sessions.ask() for _ in range(TIMES)}) > 1
    assert not list(sessions.datapath.maps["lb_affinity"].items())


def test_all_frontends_of_a_service_port_lead_to_one_backend(sessions: Sessions):
    frontend = external(sessions, sessions.backends, sessions.backends)
    first = sessions.ask()
    assert {sessions.ask(frontend) for _ in range(TIMES)} == {first}


def test_another_service_port_has_its_own_clients(sessions: Sessions):
    besides = external(sessions, sessions.backends, sessions.backends)
    sessions.change(besides, service=OTHER_SERVICE)
    pairs = {
        (sessions.ask(client=client), sessions.ask(besides, client)) for client in clients(sessions)
    }
    assert any(one != other for one, other in pairs)


def test_a_client_outside_is_known_by_its_address_before_snat(sessions: Sessions, node: Node):
    node_addresses(sessions.datapath, node)
    outside = sessions.kind.net.client
    seen = set()
    for _ in range(TIMES):
        frame = sessions.kind.frame(sessions.source(outside), sessions.frontend)
        sent = sessions.datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex).packet
        assert sent.payload.src == sessions.kind.net.overlay
        seen.add(sessions.chosen(sent))
    entry = sessions.entry(client=outside)
    assert entry
    assert seen == {entry.backend}


def test_a_process_of_the_host_is_one_client_at_its_sockets_and_at_tc(
    sessions: Sessions, node: Node, asker: Asker
):
    node_addresses(sessions.datapath, node)
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_HOST)
    seen = {asker.connect(sessions.frontend, sessions.kind.proto) for _ in range(TIMES)}
    frame = sessions.kind.frame(sessions.source(sessions.kind.net.node), sessions.frontend)
    sent = sessions.datapath.run("lb_host_egress", frame, ifindex=node.uplink.ifindex)
    assert seen == {target_of(sent.packet)}
    assert sessions.chosen(sent.packet) in sessions.backends


def test_a_pod_without_tc_cover_is_one_client(sessions: Sessions, asker: Asker):
    say_who_asks(sessions.datapath.maps, 0)
    seen = {asker.connect(sessions.frontend, sessions.kind.proto) for _ in range(TIMES)}
    assert len(seen) == 1
    assert sessions.frontend not in seen


def test_a_pod_under_tc_cover_is_left_to_tc(sessions: Sessions, asker: Asker):
    say_who_asks(sessions.datapath.maps, NetnsFlag.LB_NETNS_COVERED)
    assert asker.connect(sessions.frontend, sessions.kind.proto) == sessions.frontend
    assert sessions.entry() is None


# Time


def test_a_client_stays_until_the_timeout(sessions: Sessions):
    for backend in sessions.backends[:TIMES]:
        sessions.keep(backend, age=TIMEOUT - LONG)
        assert sessions.ask() == backend


def test_after_the_timeout_a_backend_is_chosen_again(sessions: Sessions):
    seen = set()
    for _ in range(TIMES):
        sessions.keep(sessions.backends[0], age=TIMEOUT + 1)
        seen.add(sessions.ask())
        assert sessions.ask() in seen
    assert len(seen) > 1


def test_a_new_flow_renews_the_time(sessions: Sessions):
    sessions.keep(sessions.backends[0], age=TIMEOUT - LONG)
    sessions.ask()
    assert sessions.age() < LONG


def test_packets_of_a_known_flow_do_not_renew_the_time(sessions: Sessions):
    source = sessions.source()
    sessions.datapath.run("lb_pod_ingress", sessions.kind.frame(source, sessions.frontend))
    sessions.keep(sessions.backends[0], age=ELSEWHERE)
    for flags in ("S", "A", "PA", "FA"):
        packet = sessions.kind.frame(source, sessions.frontend, flags)
        sessions.datapath.run("lb_pod_ingress", packet)
    assert sessions.age() >= ELSEWHERE


@pytest.mark.parametrize(("timeout", "stays"), [(TIMEOUT // 2, False), (TIMEOUT * 2, True)])
def test_another_timeout_counts_from_the_next_flow_on(
    sessions: Sessions, timeout: int, stays: bool
):
    sessions.change(sessions.frontend, affinity_timeout=timeout)
    seen = set()
    for _ in range(TIMES):
        sessions.keep(sessions.backends[0], age=(timeout + TIMEOUT) / 2)
        seen.add(sessions.ask())
    assert (seen == {sessions.backends[0]}) is stays


def test_affinity_can_be_switched_off_and_on(sessions: Sessions):
    sessions.ask()
    sessions.change(sessions.frontend, affinity_timeout=0)
    assert len({sessions.ask() for _ in range(TIMES)}) > 1
    sessions.change(sessions.frontend, affinity_timeout=TIMEOUT)
    assert len({sessions.ask() for _ in range(TIMES)}) == 1


# Backends that may be kept


def test_a_backend_that_left_is_replaced_for_good(sessions: Sessions):
    gone, *rest = sessions.backends
    sessions.keep(gone)
    sessions.serve(rest)
    sessions.datapath.retire_backend(gone)
    first = sessions.ask()
    assert first != gone
    assert {sessions.ask() for _ in range(TIMES)} == {first}


def test_a_change_of_backends_moves_no_other_client(sessions: Sessions):
    first = {client: sessions.ask(client=client) for client in clients(sessions)}
    left, added = set(first.values()), sessions.backends[-1]
    sessions.serve(sorted(left | {added}))
    assert {client: sessions.ask(client=client) for client in first} == first


@pytest.mark.parametrize("frontend_is_narrow", [True, False])
def test_a_backend_that_only_another_range_names_is_not_used(
    sessions: Sessions, frontend_is_narrow: bool
):
    here, elsewhere = sessions.backends[:ELSEWHERE], sessions.backends[ELSEWHERE:]
    narrow = external(sessions, here, here)
    for backend in elsewhere[:TIMES]:
        sessions.keep(backend)
        if frontend_is_narrow:
            assert sessions.ask(narrow) in here
        else:
            assert sessions.ask() == backend


def test_sources_on_this_node_and_others_each_heed_their_own_range(sessions: Sessions, node: Node):
    here, elsewhere = sessions.backends[:ELSEWHERE], sessions.backends[ELSEWHERE:]
    frontend = external(sessions, sessions.backends, here)
    node_addresses(sessions.datapath, node)
    for backend in elsewhere[:TIMES]:
        sessions.keep(backend)
        frame = sessions.kind.frame(sessions.source(), frontend)
        assert sessions.ask(frontend) == backend
        sent = sessions.datapath.run("lb_host_ingress", frame, ifindex=node.uplink.ifindex)
        assert sessions.chosen(sent.packet) in here


def test_an_index_that_was_given_to_another_backend_is_not_followed(sessions: Sessions):
    seen = set()
    for _ in range(TIMES):
        sessions.keep(sessions.backends[0], serial=2)
        seen.add(sessions.ask())
    assert len(seen) > 1


def test_without_a_usable_backend_nothing_is_renewed(sessions: Sessions):
    sessions.keep(sessions.backends[0], age=ELSEWHERE)
    sessions.serve([])
    frame = sessions.kind.frame(sessions.source(), sessions.frontend)
    sessions.datapath.run("lb_pod_ingress", frame)
    assert sessions.datapath.drops() == {DropReason.LB_DROP_NO_ENDPOINT: 1}
    assert sessions.age() >= ELSEWHERE


def test_nothing_is_kept_where_there_is_no_backend(sessions: Sessions):
    sessions.serve([])
    frame = sessions.kind.frame(sessions.source(), sessions.frontend)
    sessions.datapath.run("lb_pod_ingress", frame)
    assert sessions.entry() is None


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 8, 9, 31, BACKENDS])
def test_every_backend_of_a_range_is_found(sessions: Sessions, count: int):
    offered, others = sessions.backends[::-1][:count][::-1], sessions.backends[:-count]
    sessions.serve(offered)
    for backend in offered:
        sessions.keep(backend)
        assert sessions.ask() == backend
    for backend in others[:TIMES]:
        sessions.keep(backend)
        assert sessions.ask() in offered


# Affinity entries


def test_the_entry_names_the_backend_and_its_serial(sessions: Sessions):
    index = sessions.ask()
    serial = sessions.datapath.backend_at(index).serial
    entry = sessions.entry()
    assert entry
    assert entry == LbAffinity(index, serial, entry.last_used)


def test_more_clients_than_fit_are_all_served(sessions: Sessions):
    for client in clients(sessions, 2 * SIZES.affinity):
        assert sessions.ask(client=client) in sessions.backends
    assert len(list(sessions.datapath.maps["lb_affinity"].items())) <= SIZES.affinity
