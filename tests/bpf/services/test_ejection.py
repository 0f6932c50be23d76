# SPDX-License-Identifier: Apache-2.0
"""Failures of watched backends are counted; a backend on trial gets one connection."""

from collections.abc import Iterator, Sequence

import pytest

from ebpflb.dataplane.layout.enums import BackendFlag, SchedulerCode
from ebpflb.dataplane.layout.structs import LbClient, LbClientKey, LbDesc, LbFailures
from ebpflb.model.address import Protocol
from tests.bpf.flows.conversing import service, under_hooks
from tests.bpf.flows.flow import Flow
from tests.bpf.flows.held import Held
from tests.bpf.harness.conversing import Conversing
from tests.bpf.harness.datapath import SERVICE, Datapath, addr
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, IPV6, SEQUENCE, End, Kind
from tests.bpf.harness.services import (
    CLIENT_PORT,
    WILDCARD,
    cluster_ip,
    node_addresses,
    remote_backend,
)

WATCHED, TRIAL = BackendFlag.LB_BACKEND_WATCHED, BackendFlag.LB_BACKEND_TRIAL
MAGLEV = SchedulerCode["LB_SCHEDULER_MAGLEV"]
SECOND = 1_000_000_000
# Connections after which one of four backends that got none was skipped, not unlucky: 1e-12.
MANY = 100
# A pod unknown to the programs.
OTHER = {IPV4: "10.1.0.77", IPV6: "fd00:1::77"}


def failures(datapath: Datapath, index: int) -> tuple[int, int]:
    """A backend's consecutive failures, and the number of clients that used its trial."""
    found = counted(datapath, index)
    return found.in_a_row, found.tried.bit_count()


def counted(datapath: Datapath, index: int) -> LbFailures:
    return LbFailures.from_buffer_copy(datapath.maps["lb_failures"].lookup(u32(index)) or b"")


def set_failures(datapath: Datapath, index: int, in_a_row: int) -> None:
    datapath.maps["lb_failures"].update(u32(index), bytes(LbFailures(in_a_row=in_a_row)))


def clients(datapath: Datapath) -> set[bytes]:
    """Clients that have completed a handshake with the Service port."""
    keys = [LbClientKey.from_buffer_copy(key) for key, _ in datapath.maps["lb_clients"].items()]
    return {bytes(key.client) for key in keys if key.service == SERVICE}


def introduce(datapath: Datapath, *addresses: str) -> None:
    """Register clients as having completed a handshake."""
    for address in addresses:
        key = LbClientKey(service=SERVICE, client=addr(address))
        datapath.maps["lb_clients"].update(bytes(key), bytes(LbClient()))


def flag(datapath: Datapath, index: int, flags: BackendFlag) -> None:
    value = datapath.backend_at(index)
    value.flags |= flags
    datapath.maps["lb_backends"].update(u32(index), bytes(value))


# At tc


@pytest.fixture(params=[WATCHED, BackendFlag(0)], ids=["watched", "unwatched"])
def watched(request: pytest.FixtureRequest) -> BackendFlag:
    return request.param  # type: ignore[no-any-return]


def one_backend(datapath: Datapath, tcp: Kind, flags: BackendFlag) -> tuple[Flow, int]:
    """One backend, and a client that has completed a handshake."""
    index = remote_backend(datapath, tcp)[1]
    flag(datapath, index, flags)
    introduce(datapath, tcp.net.pod)
    return Flow(datapath, tcp, cluster_ip(datapath, tcp, [index]), CLIENT_PORT), index


def age(flow: Flow, seconds: float) -> None:
    """Make the flow older."""
    for key in flow.keys:
        created = flow.datapath.short()[key].created
        flow.datapath.write_entry(key, created=created - int(seconds * SECOND))


def test_resets_in_answer_to_a_syn_count_only_for_watched_backends(datapath, tcp, watched):
    flow, index = one_backend(datapath, tcp, watched)
    for count in range(1, 4):
        flow.pod = End(flow.pod.address, CLIENT_PORT + count)
        flow.request("S")
        flow.reply("RA")
        assert failures(datapath, index) == (count if watched else 0, 0)


def test_a_success_resets_the_failure_count(datapath, tcp):
    flow, index = one_backend(datapath, tcp, WATCHED)
    set_failures(datapath, index, 4)
    flow.request("S")
    assert failures(datapath, index)[0] == 4
    flow.reply("SA")
    assert failures(datapath, index)[0] == 0


def test_a_success_does_not_count_without_watching(datapath, tcp):
    flow, index = one_backend(datapath, tcp, BackendFlag(0))
    set_failures(datapath, index, 4)
    flow.establish()
    assert failures(datapath, index) == (4, 0)


def test_a_syn_that_is_repeated_after_a_second_is_a_failure_once(datapath, tcp, watched):
    flow, index = one_backend(datapath, tcp, watched)
    flow.request("S")
    flow.request("S")
    assert failures(datapath, index)[0] == 0
    age(flow, 1)
    for _ in range(3):
        flow.request("S")
    assert failures(datapath, index)[0] == bool(watched)
    flow.reply("RA")
    assert failures(datapath, index)[0] == bool(watched)


def test_a_syn_whose_answer_was_lost_on_the_way_to_the_client_is_no_failure(datapath, tcp):
    flow, index = one_backend(datapath, tcp, WATCHED)
    flow.request("S")
    flow.reply("SA")
    age(flow, 3)
    flow.request("S")
    assert failures(datapath, index)[0] == 0


def test_a_reset_of_an_open_connection_is_no_failure(datapath, tcp):
    flow, index = one_backend(datapath, tcp, WATCHED)
    flow.establish()
    flow.reply("RA")
    assert failures(datapath, index)[0] == 0


def test_a_flow_of_an_earlier_backend_at_the_index_does_not_count(datapath, tcp):
    flow, index = one_backend(datapath, tcp, WATCHED)
    flow.request("S")
    datapath.write_backend(index, flow.backend, tcp.proto, flags=WATCHED, serial=2)
    flow.reply("RA")
    assert failures(datapath, index)[0] == 0


@pytest.mark.parametrize("flags", ["RA", ""], ids=["refused", "unanswered"])
def test_a_client_that_has_never_completed_a_handshake_does_not_count(datapath, tcp, flags):
    flow, index = one_backend(datapath, tcp, WATCHED)
    flow.pod = End(OTHER[tcp.net], CLIENT_PORT)
    flow.request("S")
    if flags:
        flow.reply(flags)
    else:
        age(flow, 1)
        flow.request("S")
    assert failures(datapath, index)[0] == 0


def test_a_handshake_makes_a_client_known_to_a_watched_service_port(datapath, tcp, watched):
    flow, _ = one_backend(datapath, tcp, watched)
    flow.pod = End(OTHER[tcp.net], CLIENT_PORT)
    flow.request("S")
    flow.reply("SA")
    flow.request("A", ack=SEQUENCE + (1 << 20))
    assert bytes(addr(OTHER[tcp.net])) not in clients(datapath)
    flow.request("A")
    assert (bytes(addr(OTHER[tcp.net])) in clients(datapath)) == bool(watched)


def fail(flow: Flow, address: str, times: int = 1) -> None:
    for _ in range(times):
        flow.pod = End(address, flow.pod.port + 1)
        flow.request("S")
        flow.reply("RA")


def test_it_is_counted_how_many_clients_have_failed(datapath, tcp):
    flow, index = one_backend(datapath, tcp, WATCHED)
    pods = [tcp.net.pod, tcp.net.local, OTHER[tcp.net]]
    introduce(datapath, *pods)
    fail(flow, pods[0], times=5)
    assert counted(datapath, index).failed.bit_count() == 1
    for pod in pods[1:]:
        fail(flow, pod)
    assert (counted(datapath, index).in_a_row, counted(datapath, index).failed.bit_count()) == (
        7,
        3,
    )
    flow.establish()
    assert counted(datapath, index).failed == 0


def test_external_addresses_of_one_64_count_as_one_client(datapath, node, tcp):
    """External addresses within one /64."""
    node_addresses(datapath, node)
    held = Held(datapath, node, tcp)
    flag(datapath, 1, WATCHED)
    for last in "345":
        held.client = tcp.net.client[:-1] + last
        held.establish(CLIENT_PORT)
    assert len(clients(datapath)) == (3 if tcp.net is IPV4 else 1)


# Trials


def four(datapath: Datapath, kind: Kind) -> list[int]:
    """Four watched backends."""
    ends = [End(kind.net.remote, 8080 + number) for number in range(4)]
    return [datapath.backend(end, kind.proto, flags=WATCHED) for end in ends]


def opened(datapath: Datapath, kind: Kind, frontend: End, ports: int = MANY) -> list[int]:
    """The backends of this many new flows, each from another port."""
    introduce(datapath, kind.net.pod)
    flow = Flow(datapath, kind, frontend, CLIENT_PORT)
    got = [0] * 4
    for number in range(ports):
        flow.pod = End(kind.net.pod, CLIENT_PORT + number)
        got[flow.request("S").port - 8080] += 1
    return got


@pytest.mark.parametrize("on_trial", [0, 3])
def test_a_backend_on_trial_gets_one_connection(datapath: Datapath, tcp: Kind, on_trial: int):
    backends = four(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, backends)
    flag(datapath, backends[on_trial], TRIAL)
    set_failures(datapath, backends[on_trial], 1)
    got = opened(datapath, tcp, frontend)
    assert got[on_trial] == 1
    assert sorted(got)[1] > 1
    assert failures(datapath, backends[on_trial]) == (1, 1)


@pytest.mark.parametrize("scheduler", [SchedulerCode["LB_SCHEDULER_RANDOM"], MAGLEV])
def test_two_on_trial_side_by_side_are_passed_by(
    datapath: Datapath, tcp: Kind, scheduler: SchedulerCode
):
    backends = four(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, backends)
    for index in backends[1:3]:
        flag(datapath, index, TRIAL)
        set_failures(datapath, index, 1)
    if scheduler == MAGLEV:
        look_up_in_table(datapath, backends[1:3])
    got = opened(datapath, tcp, frontend)
    assert got[1:3] == [1, 1]
    assert sum(got) == MANY


def look_up_in_table(datapath: Datapath, backends: Sequence[int]) -> None:
    """Have the frontend's lookup table, after its range, name these backends."""
    desc = LbDesc.from_buffer_copy(datapath.maps["lb_descs"].lookup(u32(1)) or b"")
    desc.scheduler = MAGLEV
    for places in (desc.local, desc.others):
        places.table = len(backends)
        for number, index in enumerate(backends):
            datapath.maps["lb_slots"].update(u32(places.base + places.count + number), u32(index))
    datapath.maps["lb_descs"].update(u32(1), bytes(desc))


def test_a_trial_that_has_succeeded_needs_no_agent(datapath: Datapath, tcp: Kind):
    backends = four(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, backends)
    flag(datapath, backends[2], TRIAL)
    set_failures(datapath, backends[2], 0)
    assert opened(datapath, tcp, frontend)[2] > 1


def on_trial(datapath: Datapath, kind: Kind) -> tuple[Flow, int]:
    """The only backend, so that it gets every flow; its trial's use shows which ones were
    admitted.
    """
    flow, index = one_backend(datapath, kind, WATCHED | TRIAL)
    introduce(datapath, kind.net.local)
    set_failures(datapath, index, 1)
    return flow, index


def tried(flow: Flow, address: str, index: int) -> bool:
    """Whether a backend on trial admits a new connection."""
    before = counted(flow.datapath, index)
    flow.pod = End(address, flow.pod.port + 1)
    flow.request("S")
    return bytes(counted(flow.datapath, index)) != bytes(before)


def wait(datapath: Datapath, index: int, seconds: float) -> None:
    """Make the last trial of a backend that much older."""
    value = counted(datapath, index)
    value.busy_until -= int(seconds * SECOND)
    datapath.maps["lb_failures"].update(u32(index), bytes(value))


def test_a_client_that_may_be_made_up_is_not_let_try(datapath, tcp):
    flow, index = on_trial(datapath, tcp)
    assert not tried(flow, OTHER[tcp.net], index)
    assert tried(flow, tcp.net.pod, index)


def test_one_client_at_a_time_may_try_and_each_of_them_once(datapath, tcp):
    flow, index = on_trial(datapath, tcp)
    assert tried(flow, tcp.net.pod, index)
    wait(datapath, index, 1)
    assert not tried(flow, tcp.net.local, index)
    wait(datapath, index, 1)
    assert not tried(flow, tcp.net.pod, index)
    assert tried(flow, tcp.net.local, index)


def test_after_a_failure_another_client_may_try_at_once(datapath, tcp):
    flow, index = on_trial(datapath, tcp)
    assert tried(flow, tcp.net.pod, index)
    flow.reply("RA")
    assert counted(datapath, index).in_a_row == 2
    assert tried(flow, tcp.net.local, index)


def test_on_trial_a_client_counts_once(datapath, tcp):
    flow, index = on_trial(datapath, tcp)
    fail(flow, tcp.net.pod, times=3)
    fail(flow, tcp.net.local)
    found = counted(datapath, index)
    assert (found.in_a_row, found.failed.bit_count()) == (3, 2)


def test_if_all_are_on_trial_connections_go_on(datapath: Datapath, tcp: Kind):
    backends = four(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, backends)
    for index in backends:
        flag(datapath, index, TRIAL)
        set_failures(datapath, index, 1)
    assert sum(opened(datapath, tcp, frontend)) == MANY


def test_affinity_does_not_go_past_the_trial(datapath: Datapath, tcp: Kind):
    backends = four(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, backends)
    desc = LbDesc.from_buffer_copy(datapath.maps["lb_descs"].lookup(u32(1)) or b"")
    desc.affinity_timeout = 3600
    datapath.maps["lb_descs"].update(u32(1), bytes(desc))
    first = opened(datapath, tcp, frontend, 1).index(1)
    datapath.maps["lb_ct_short"].delete_batch(list(dict(datapath.maps["lb_ct_short"].items())))
    flag(datapath, backends[first], TRIAL)
    set_failures(datapath, backends[first], 1)
    assert opened(datapath, tcp, frontend)[first] <= 1


# At the socket


@pytest.fixture(scope="module")
def conversing(programs: Loaded, machine: Node) -> Iterator[Conversing]:
    with under_hooks(programs, machine, "ejecting") as made:
        yield made


def test_refused_sockets_count_until_one_succeeds(
    datapath: Datapath, conversing: Conversing, tcp: Kind, watched: BackendFlag
):
    frontend, backend, index = service(datapath, tcp)
    flag(datapath, index, watched)
    introduce(datapath, WILDCARD[tcp.net])
    for count in range(1, 4):
        conversing.converse("in vain", frontend, frontend, (0, 0))
        assert failures(datapath, index)[0] == (count if watched else 0)
    conversing.converse("client first", frontend, backend, (0, 0))
    assert failures(datapath, index)[0] == 0


def test_a_socket_that_gives_up_counts(datapath: Datapath, conversing: Conversing, tcp: Kind):
    frontend = End(tcp.net.cluster_ip, 80)
    index = datapath.backend(End(tcp.net.client, 18080), Protocol.TCP, flags=WATCHED)
    datapath.frontend(frontend, Protocol.TCP, local=[index])
    introduce(datapath, WILDCARD[tcp.net])
    conversing.converse("in vain", frontend, frontend, (0, 0))
    assert failures(datapath, index)[0] == 1


def test_a_socket_counts_a_backend_on_trial_once(
    datapath: Datapath, conversing: Conversing, tcp: Kind
):
    backends = [datapath.backend(End(tcp.net.node, 18080), Protocol.TCP, flags=WATCHED | TRIAL)]
    backends.append(datapath.backend(End(tcp.net.node, 18081), Protocol.TCP, flags=WATCHED))
    set_failures(datapath, backends[0], 1)
    introduce(datapath, WILDCARD[tcp.net])
    frontend = End(tcp.net.cluster_ip, 80)
    datapath.frontend(frontend, Protocol.TCP, local=backends)
    for _ in range(40):
        conversing.converse("in vain", frontend, frontend, (0, 0))
    assert failures(datapath, backends[0]) == (2, 1)
    assert failures(datapath, backends[1]) == (39, 0)


def test_a_socket_that_connects_makes_its_client_known(
    datapath: Datapath, conversing: Conversing, tcp: Kind, watched: BackendFlag
):
    frontend, backend, index = service(datapath, tcp)
    flag(datapath, index, watched)
    conversing.converse("client first", frontend, backend, (0, 0))
    assert clients(datapath) == ({bytes(addr(WILDCARD[tcp.net]))} if watched else set())
