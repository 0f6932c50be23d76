# SPDX-License-Identifier: Apache-2.0
"""Failed connections are counted for watched backends, and a backend on trial gets one of them."""

from collections.abc import Iterator, Sequence

import pytest

from ebpflb.dataplane.layout.enums import BackendFlag, SchedulerCode
from ebpflb.dataplane.layout.structs import LbDesc, LbFailures
from ebpflb.model.address import Protocol
from tests.bpf.flows.test_connections import service, under_hooks
from tests.bpf.flows.test_conntrack import Flow
from tests.bpf.harness.conversing import Conversing
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import Loaded
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind
from tests.bpf.harness.services import CLIENT_PORT, cluster_ip, remote_backend

WATCHED, TRIAL = BackendFlag.LB_BACKEND_WATCHED, BackendFlag.LB_BACKEND_TRIAL
MAGLEV = SchedulerCode.LB_SCHEDULER_MAGLEV
SECOND = 1_000_000_000
# Connections after which a backend of four that got none was passed over, not unlucky: 1e-12.
MANY = 100


def failures(datapath: Datapath, index: int) -> tuple[int, int]:
    """Of a backend: in a row, and whether it was tried."""
    value = datapath.maps["lb_failures"].lookup(u32(index))
    found = LbFailures.from_buffer_copy(value or b"")
    return found.in_a_row, found.is_tried


def set_failures(datapath: Datapath, index: int, in_a_row: int, is_tried: int = 0) -> None:
    value = LbFailures(in_a_row=in_a_row, is_tried=is_tried)
    datapath.maps["lb_failures"].update(u32(index), bytes(value))


def flag(datapath: Datapath, index: int, flags: BackendFlag) -> None:
    value = datapath.backend_at(index)
    value.flags |= flags
    datapath.maps["lb_backends"].update(u32(index), bytes(value))


# At tc


@pytest.fixture(params=[WATCHED, BackendFlag(0)], ids=["watched", "unwatched"])
def watched(request: pytest.FixtureRequest) -> BackendFlag:
    return request.param  # type: ignore[no-any-return]


def one_backend(datapath: Datapath, tcp: Kind, flags: BackendFlag) -> tuple[Flow, int]:
    index = remote_backend(datapath, tcp)[1]
    flag(datapath, index, flags)
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


def test_a_success_ends_the_row(datapath, tcp):
    flow, index = one_backend(datapath, tcp, WATCHED)
    set_failures(datapath, index, 4, 1)
    flow.request("S")
    assert failures(datapath, index) == (4, 1)
    flow.reply("SA")
    assert failures(datapath, index) == (0, 1)


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
    datapath.write_backend(index, flow.backend, tcp.proto, flags=WATCHED, generation=2)
    flow.reply("RA")
    assert failures(datapath, index)[0] == 0


# A trial


def four(datapath: Datapath, kind: Kind) -> list[int]:
    """Backends that are watched."""
    ends = [End(kind.net.remote, 8080 + number) for number in range(4)]
    return [datapath.backend(end, kind.proto, flags=WATCHED) for end in ends]


def opened(datapath: Datapath, kind: Kind, frontend: End, ports: int = MANY) -> list[int]:
    """How many new flows go to each of four backends: one from each of so many ports."""
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


@pytest.mark.parametrize("scheduler", [SchedulerCode.LB_SCHEDULER_RANDOM, MAGLEV])
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
    """Have the frontend's lookup table, behind its range, name these backends."""
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
    set_failures(datapath, backends[2], 0, 1)
    assert opened(datapath, tcp, frontend)[2] > 1


def test_if_all_are_on_trial_connections_go_on(datapath: Datapath, tcp: Kind):
    backends = four(datapath, tcp)
    frontend = cluster_ip(datapath, tcp, backends)
    for index in backends:
        flag(datapath, index, TRIAL)
        set_failures(datapath, index, 1, 1)
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
    set_failures(datapath, backends[first], 1, 1)
    assert opened(datapath, tcp, frontend)[first] == 0


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
    for count in range(1, 4):
        conversing.converse("in vain", frontend, frontend, (0, 0))
        assert failures(datapath, index)[0] == (count if watched else 0)
    conversing.converse("client first", frontend, backend, (0, 0))
    assert failures(datapath, index)[0] == 0


def test_a_socket_that_gives_up_counts(datapath: Datapath, conversing: Conversing, tcp: Kind):
    frontend = End(tcp.net.cluster_ip, 80)
    index = datapath.backend(End(tcp.net.client, 18080), Protocol.TCP, flags=WATCHED)
    datapath.frontend(frontend, Protocol.TCP, local=[index])
    conversing.converse("in vain", frontend, frontend, (0, 0))
    assert failures(datapath, index)[0] == 1


def test_a_socket_counts_a_backend_on_trial_once(
    datapath: Datapath, conversing: Conversing, tcp: Kind
):
    backends = [datapath.backend(End(tcp.net.node, 18080), Protocol.TCP, flags=WATCHED | TRIAL)]
    backends.append(datapath.backend(End(tcp.net.node, 18081), Protocol.TCP, flags=WATCHED))
    set_failures(datapath, backends[0], 1)
    frontend = End(tcp.net.cluster_ip, 80)
    datapath.frontend(frontend, Protocol.TCP, local=backends)
    for _ in range(40):
        conversing.converse("in vain", frontend, frontend, (0, 0))
    assert failures(datapath, backends[0]) == (2, 1)
    assert failures(datapath, backends[1]) == (39, 0)
