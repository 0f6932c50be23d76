# SPDX-License-Identifier: Apache-2.0
"""Each endpoint has so many open connections from this node."""

from collections import Counter

import pytest

from ebpflb.dataplane.layout.enums import (
    BackendFlag,
    DescFlag,
    DropReason,
    FlowEvent,
    LimitFlag,
    NetnsFlag,
    SchedulerCode,
)
from ebpflb.dataplane.layout.records import pack_index, pack_open
from tests.bpf.extensions.limited import (
    FIRST_PORT,
    LIMITED,
    SECOND,
    Limited,
    is_refused,
    limit,
    silences,
    uses,
)
from tests.bpf.extensions.opening import Opening
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import SERVICE, Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import End, Kind
from tests.bpf.harness.ring import Ring

OPEN_DROPS = LimitFlag.LB_LIMIT_OPEN_DROPS
FULL = DropReason.LB_DROP_BACKENDS_FULL
# How many slots are tried where backends are full.
TRIED = 8


@pytest.mark.parametrize("scheduler", list(SchedulerCode))
def test_each_endpoint_gets_as_many_connections_as_it_may(
    datapath: Datapath, kind: Kind, scheduler: SchedulerCode
):
    limited = Limited(datapath, kind, open=3)
    limited.change(scheduler=scheduler)
    chosen = Counter(limited.opens() for _ in range(14))
    assert chosen == dict.fromkeys(limited.offered, 3) | {None: 2}
    assert limited.counts() == [3] * 4
    assert datapath.drops() == {FULL: 2}


@silences
def test_one_more_is_refused_or_dropped(
    datapath: Datapath, ring: Ring, kind: Kind, is_silent: bool
):
    limited = Limited(datapath, kind, open=1, flags=OPEN_DROPS * is_silent)
    limited.put(1, 1, 1, 1)
    assert is_refused(limited.open()[1]) is not is_silent
    (record,) = ring.take()
    event = FlowEvent.LB_FLOW_DROPPED if is_silent else FlowEvent.LB_FLOW_REFUSED
    assert (record.event, record.reason) == (event, FULL)
    assert datapath.counts("lb_count_front", 1) == (0, 1 - is_silent, is_silent)


@pytest.mark.parametrize("backends", [TRIED, TRIED + 1])
def test_where_others_may_have_room_the_client_shall_try_again(
    datapath: Datapath, kind: Kind, backends: int
):
    limited = Limited(datapath, kind, backends, open=1)
    limited.put(*[1] * backends)
    assert is_refused(limited.open()[1]) is (backends <= TRIED)


def test_a_single_place_among_eight_is_found(datapath: Datapath, kind: Kind):
    limited = Limited(datapath, kind, TRIED, open=5)
    for place in range(TRIED):
        limited.put(*(4 if place == each else 5 for each in range(TRIED)))
        assert limited.opens() == limited.offered[place]


def test_an_endpoint_whose_connection_ends_has_room_again(datapath: Datapath, tcp: Kind):
    limited = Limited(datapath, tcp, 1, open=1)
    source, result = limited.open()
    assert limited.opens() is None
    limited.end(source, result.packet)
    assert limited.opens() == limited.offered[0]


def test_without_the_flag_there_is_no_limit(datapath: Datapath, kind: Kind):
    limited = Limited(datapath, kind, 1, open=1, client_open=1, interval=SECOND)
    limited.change(flags=0)
    limited.sessions.change(limited.frontend, affinity_timeout=0, flags=0)
    assert None not in [limited.opens() for _ in range(5)]
    assert not uses(datapath)


def test_a_limit_that_is_gone_does_not_hold(datapath: Datapath, kind: Kind):
    limited = Limited(datapath, kind, 1, open=1)
    datapath.maps["lb_limits"].delete(u32(SERVICE))
    assert None not in [limited.opens() for _ in range(5)]


def test_a_client_with_affinity_moves_from_a_full_endpoint(datapath: Datapath, kind: Kind):
    limited = Limited(datapath, kind, open=1)
    limited.change(affinity_timeout=1000)
    first = limited.opens()
    second = limited.opens()
    assert second not in (first, None)
    limited.put(0, 0, 0, 0)
    assert limited.opens() == second


@pytest.mark.parametrize("is_first", [True, False])
def test_weighted_endpoints_are_passed_too(datapath: Datapath, kind: Kind, is_first: bool):
    limited = Limited(datapath, kind, 3, open=2)
    one, two, three = limited.offered
    place = limited.sessions.range_of(limited.offered, [one] * 9 + [two])
    limited.change(local=place, others=place)
    limited.put(*((2, 2, 0) if is_first else (2, 0, 2)))
    assert limited.opens() == (three if is_first else two)


def test_a_connection_that_is_retried_passes_full_endpoints(datapath: Datapath, tcp: Kind):
    opening = Opening(datapath, tcp, 3, LIMITED | DescFlag.LB_DESC_RETRY)
    limit(datapath, open=2)
    first = opening.syn()
    full, other = [each for each in opening.indices if each != _index(opening, first)]
    datapath.maps["lb_open"].update(pack_index(full), pack_open(2))
    assert _index(opening, opening.unanswered()) == other


def _index(opening: Opening, backend: End) -> int:
    return opening.indices[backend.port - FIRST_PORT]


@pytest.mark.parametrize("room", [0, 1])
def test_one_on_trial_is_preferred_to_full_ones_alone(datapath: Datapath, kind: Kind, room: int):
    """The pod has no handshake behind it, and so nothing to try with."""
    limited = Limited(datapath, kind, 3, open=1)
    trial = limited.offered[0]
    record = datapath.backend_at(trial)
    record.flags |= BackendFlag.LB_BACKEND_TRIAL
    datapath.maps["lb_backends"].update(pack_index(trial), bytes(record))
    datapath.maps["lb_failures"].update(pack_index(trial), u32(5) + bytes(28))
    limited.put(0, 1, 1 - room)
    assert limited.opens() == limited.offered[2 * room]


@pytest.mark.parametrize("who", [NetnsFlag.LB_NETNS_HOST, 0])
def test_sockets_pass_full_endpoints(
    datapath: Datapath, asker: Asker, node: Node, kind: Kind, who: int
):
    limited = Limited(datapath, kind, open=1)
    say_who_asks(datapath.maps, who)
    for place in range(4):
        limited.put(*(0 if place == each else 1 for each in range(4)))
        found = asker.connect(limited.frontend, kind.proto)
        assert found == End(kind.net.remote, FIRST_PORT + place)


def test_a_socket_without_an_endpoint_is_left_to_tc(
    datapath: Datapath, asker: Asker, node: Node, kind: Kind
):
    limited = Limited(datapath, kind, open=1)
    say_who_asks(datapath.maps, NetnsFlag.LB_NETNS_HOST)
    limited.put(1, 1, 1, 1)
    assert asker.connect(limited.frontend, kind.proto) == limited.frontend
    assert not datapath.drops()
