# SPDX-License-Identifier: Apache-2.0
"""Which open connections are ended."""

from collections import Counter
from typing import Any

import pytest

from ebpflb.model.address import Family, SocketAddress
from ebpflb.model.ejection import NO_WATCH, PortWatch
from ebpflb.model.ending.endings import Ending, Endings, EndReason, HeldConnection
from ebpflb.model.endpoint import Endpoint
from ebpflb.model.extensions.lifetime import MaxAge, OnEndpointGone, Rebalance
from ebpflb.model.plan import plan_service
from ebpflb.model.service import ServiceName, TrafficPolicy
from ebpflb.words.scheduler import Scheduler
from tests.builders import (
    CLUSTER_IP,
    NODE,
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
)

WEB = port_name()
FAST = Rebalance(idle=30, per_minute=60_000)
VIP = SocketAddress(address(CLUSTER_IP), 80)
NODE_PORT = 30080
OF_NODE = SocketAddress(address("192.0.2.1"), NODE_PORT)


def pods(*numbers: int, **fields: Any) -> list[Endpoint]:
    return [
        endpoint(f"10.1.0.{each}", NODE if each == 1 else OTHER_NODE, **fields) for each in numbers
    ]


def place(number: int) -> SocketAddress:
    return SocketAddress(address(f"10.1.0.{number}"), 8080)


class Node:
    """Connections of one node to default/web; a client whose connection ends does not return."""

    def __init__(self, endpoints: list[Endpoint], *, port: Any = None, **annotated: Any) -> None:
        ports = port if isinstance(port, tuple) else (port or service_port(),)
        self.service = service("web", *ports, **annotated)
        self.endpoints_6: list[Endpoint] = []
        self.endpoints = endpoints
        self.endings = Endings()
        self.rehearsal = Endings(is_rehearsal=True)
        self.watch = NO_WATCH
        # By the number of each pod; none: even ones.
        self.weights: dict[int, int] = {}
        self.held: list[HeldConnection] = []
        self.now = 1000.0
        self.look()

    def _weighed(self) -> list[tuple[int | None, list[Endpoint]]]:
        if not self.weights:
            return [(None, self.endpoints)]
        return [(self.weights[each.address[-1]], [each]) for each in self.endpoints]

    def open(self, pod: int, count: int = 1, **fields: Any) -> None:
        usual: dict[str, Any] = {
            "age": 100.0,
            "idle": 60.0,
            "frontend": VIP,
            "is_outside": False,
        } | fields
        for _ in range(count):
            cookie = len(self.held) + 1
            self.held.append(HeldConnection(cookie, backend=place(pod), **usual | fields))

    def look(self) -> list[Ending]:
        pieces = [
            endpoint_slice(f"web-{number}", *those, weight=weight)
            for number, (weight, those) in enumerate(self._weighed())
        ]
        if self.endpoints_6:
            pieces.append(endpoint_slice("six", *self.endpoints_6, family=Family.IPV6))
        return self.endings.choose(
            self.service,
            plan_service(self.service, pieces, node(), watch=lambda _: self.watch),
            pieces,
            {WEB: self.held},
            self.now,
        )

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.held = [
            each._replace(age=each.age + seconds, idle=each.idle + seconds) for each in self.held
        ]

    def ended(self) -> Counter[tuple[int, EndReason]]:
        """How many of each pod, and why."""
        found = self.look()
        gone = {each.connection for each in found}
        self.held = [each for each in self.held if each not in gone]
        return Counter((each.connection.backend.address[-1], each.reason) for each in found)


def test_nothing_happens_without_an_annotation():
    web = Node(pods(1, 2))
    web.open(1, 20)
    web.open(9)
    assert not web.ended()


def test_the_fullest_endpoints_lose_what_is_above_their_share():
    web = Node(pods(1, 2), rebalance=FAST)
    web.open(1, 12)
    web.open(2, 12)
    assert not web.ended()
    web.endpoints = pods(1, 2, 3, 4, 5, 6)
    # A share is 4, and one more is no surplus when nearly all are where they should be.
    assert web.ended() == {(1, EndReason.UNEVEN): 8, (2, EndReason.UNEVEN): 7}


def test_small_shares_are_not_all_rounded_up():
    web = Node(pods(1, 2, 3, 4, 5, 6), rebalance=FAST)
    for pod in (1, 2, 3, 4):
        web.open(pod, 3)
    # Four of twelve are above a share of 2; with one, no more than a tenth is.
    assert web.ended().total() == 3


def test_clients_that_were_ended_are_expected_back_for_a_minute():
    web = Node(pods(1, 2), rebalance=FAST)
    web.open(1, 60)
    assert web.ended().total() == 27
    assert not web.ended()
    web.wait(2)
    web.open(2, 27, age=1)
    web.wait(30)
    assert not web.ended()


def test_a_client_that_was_ended_twice_is_expected_once():
    web = Node(pods(1, 2, 3, 4), rebalance=Rebalance(1, 60_000))
    web.open(1, 12, age=5, idle=5)
    for _ in range(4):
        assert web.ended().total() == 8
        # By chance they come back to where they were.
        web.wait(1)
        web.open(1, 8, age=0, idle=0)
        web.wait(2)
    assert web.ended().total() == 8
    web.wait(1)
    for pod, count in ((1, 1), (2, 3), (3, 3), (4, 1)):
        web.open(pod, count, age=0, idle=0)
    web.wait(2)
    assert web.ended() == {(1, EndReason.UNEVEN): 1}


def test_those_of_the_other_family_are_not_expected():
    six = service_port("fd00:96::1")
    web = Node(pods(1, 2), port=(service_port(), six), rebalance=FAST)
    web.open(1, 60)
    assert web.ended().total() == 27
    web.held = []
    web.endpoints_6 = [endpoint(f"fd01::{each}", NODE) for each in (1, 2)]
    vip = SocketAddress(six.cluster_ip, 80)
    for number in range(12):
        place_6 = SocketAddress(address("fd01::1"), 8080)
        web.held.append(HeldConnection(number, vip, False, place_6, 50.0, 40.0))
    assert web.ended().total() == 5


def test_clients_that_do_not_come_back_do_not_count():
    web = Node(pods(1, 2), rebalance=FAST)
    web.open(1, 60)
    assert web.ended().total() == 27
    web.wait(60)
    assert web.ended().total() == 14


def test_the_oldest_go_first_and_none_that_is_busy():
    web = Node(pods(1, 2), rebalance=Rebalance(30, 60))
    web.open(1, age=50)
    web.open(1, age=500, idle=29.0)
    web.open(1, age=400)
    web.open(1, age=300)
    (first,) = web.look()
    assert (first.connection.age, first.idle) == (400, 30)
    web.held = [each._replace(idle=0) for each in web.held]
    assert not web.look()


def test_the_rate_is_kept():
    web = Node(pods(1, 2), rebalance=Rebalance(30, 12))
    web.open(1, 40)
    ended = []
    for _ in range(7):
        ended.append(web.ended().total())
        web.wait(10)
    # 12 a minute are 2 in 10 s.
    assert ended == [2, 2, 2, 2, 2, 2, 2]
    web.wait(3600)
    assert web.ended().total() == 2
    web.wait(1)
    assert web.ended().total() == 0


def test_a_connection_for_each_of_many_nodes_moves_as_likely_as_it_should():
    moved = 0
    for cookie in range(600):
        web = Node(pods(1), rebalance=FAST)
        web.held.append(HeldConnection(cookie, VIP, False, place(1), 100.0, 60.0))
        web.wait(10)
        web.endpoints = pods(1, 2, 3)
        moved += web.ended().total()
        web.wait(10)
        # What stays was decided to stay.
        assert not web.ended()
    assert 360 < moved < 440


def test_a_connection_opened_since_the_last_endpoint_came_stays():
    web = Node(pods(1), rebalance=FAST)
    web.endpoints = pods(1, 2, 3)
    web.look()
    web.wait(60)
    web.open(1, age=55)
    assert not web.ended()


def test_what_is_at_an_endpoint_that_gets_no_new_connections_stays_and_does_not_count():
    web = Node([*pods(1, 2), *pods(3, ready=False)], rebalance=FAST)
    web.open(3, 10)
    web.open(1, 2)
    web.open(2, 2)
    assert not web.ended()


def test_clients_outside_are_compared_with_each_other_if_a_policy_treats_them_differently():
    port = service_port(node_port=NODE_PORT, external_policy=TrafficPolicy.LOCAL)
    web = Node(pods(1, 2), port=port, rebalance=FAST)
    # The only endpoint on this node.
    web.open(1, 10, frontend=OF_NODE, is_outside=True)
    web.open(2, 6, frontend=OF_NODE)
    web.open(1, 2)
    assert web.ended() == {(2, EndReason.UNEVEN): 1}


def test_those_of_clients_outside_are_spread_over_the_endpoints_of_this_node():
    """Connections to endpoints elsewhere have no socket here, whoever may have them."""
    here = [endpoint(f"10.1.0.{each}", NODE) for each in (1, 2)]
    web = Node([*here, *pods(3, 4)], port=service_port(node_port=NODE_PORT), rebalance=FAST)
    for pod in (1, 2):
        web.open(pod, 10, frontend=OF_NODE, is_outside=True)
    assert not web.ended()
    web.open(1, 10, frontend=OF_NODE, is_outside=True)
    assert web.ended() == {(1, EndReason.UNEVEN): 3}


def test_connections_are_spread_by_weights():
    web = Node(pods(1, 2, 3), rebalance=FAST)
    web.weights = {1: 2, 2: 1, 3: 0}
    for pod in (1, 2, 3):
        web.open(pod, 20)
    assert web.ended() == {(2, EndReason.UNEVEN): 5}


def test_none_is_ended_for_an_endpoint_on_trial():
    web = Node(pods(1, 2), rebalance=FAST)
    web.watch = PortWatch(is_on=True, on_trial=frozenset({place(2)}))
    web.open(1, 10)
    assert not web.ended()
    web.watch = PortWatch(is_on=True)
    assert web.ended() == {(1, EndReason.UNEVEN): 4}


@pytest.mark.parametrize("scheduler", Scheduler)
@pytest.mark.parametrize("affinity", [0, 60])
def test_none_is_ended_whose_client_would_come_back(scheduler: Scheduler, affinity: int):
    port = service_port(affinity_timeout=affinity)
    web = Node(pods(1, 2), port=port, rebalance=FAST, scheduler=scheduler)
    web.open(1, 10)
    stays = (Scheduler.SOURCE_HASH, Scheduler.LOWEST_LATENCY)
    assert web.ended().total() == (0 if affinity or scheduler in stays else 4)


def test_such_a_one_gets_too_old_all_the_same():
    web = Node(pods(1), max_age=MaxAge(60), rebalance=FAST, scheduler=Scheduler.SOURCE_HASH)
    web.open(1, 3)
    assert web.ended() == {(1, EndReason.AGE): 3}


def test_a_connection_through_a_frontend_that_is_gone_stays():
    web = Node(pods(1, 2), rebalance=FAST)
    web.open(1, 10, frontend=OF_NODE)
    assert not web.ended()


@pytest.mark.parametrize(("percent", "least", "most"), [(0, 0, 0), (10, 30, 70)])
def test_the_old_ones_end_when_they_are_idle(percent: int, least: int, most: int):
    web = Node(pods(1), max_age=MaxAge(600, percent))
    web.open(1, 100, age=600, idle=2)
    assert least <= web.ended().total() <= most
    web.wait(61)
    web.open(1, age=700, idle=0.5)
    web.open(1, age=500)
    assert set(web.ended()) == {(1, EndReason.AGE)}
    assert [each.age for each in web.held] == [700, 500]


def test_only_what_is_of_an_endpoint_in_no_slice_is_of_a_gone_one():
    web = Node([*pods(1), *pods(2, ready=False)], on_endpoint_gone=OnEndpointGone.RESET)
    web.open(1)
    web.open(2)
    web.open(3, idle=0)
    assert web.ended() == {(3, EndReason.GONE): 1}


def test_gone_ones_are_not_held_back_by_the_rate():
    slow = Rebalance(30, 1)
    web = Node(pods(1, 2), rebalance=slow, on_endpoint_gone=OnEndpointGone.RESET)
    web.open(1, 10)
    web.open(3, 10)
    assert web.ended() == {(3, EndReason.GONE): 10, (1, EndReason.UNEVEN): 1}


DRY = FAST._replace(is_dry_run=True)


def rehearsed(web: Node) -> Counter[int]:
    """How many connections of each pod a dry run names; they stay open."""
    web.endings, real = web.rehearsal, web.endings
    found = Counter(each.connection.backend.address[-1] for each in web.look())
    web.endings = real
    return found


def test_a_dry_run_ends_nothing_and_names_each_once_a_minute():
    web = Node(pods(1, 2), rebalance=DRY)
    web.open(1, 60)
    assert rehearsed(web) == {1: 27}
    web.wait(59)
    assert not rehearsed(web)
    web.wait(2)
    assert rehearsed(web) == {1: 27}
    assert not web.ended()


def test_a_dry_run_holds_nothing_else_back():
    web = Node(
        pods(1, 2),
        rebalance=Rebalance(30, 1, is_dry_run=True),
        max_age=MaxAge(600),
        on_endpoint_gone=OnEndpointGone.RESET,
    )
    web.open(1, 20, age=700, idle=2)
    web.open(1, 10)
    web.open(3, 5)
    assert rehearsed(web) == {1: 1}
    # Neither the rate nor the idle time of the dry run holds for the old ones.
    assert web.ended() == {(1, EndReason.AGE): 20, (3, EndReason.GONE): 5}


def test_what_a_dry_run_has_named_changes_nothing_of_what_is_ended_later():
    web, other = Node(pods(1, 2), rebalance=DRY), Node(pods(1, 2), rebalance=FAST)
    for each in (web, other):
        each.open(1, 60)
    rehearsed(web)
    web.service = other.service
    assert web.ended() == other.ended()


def test_what_is_ended_for_real_is_not_rehearsed():
    web = Node(pods(1, 2), rebalance=FAST, max_age=MaxAge(60))
    web.open(1, 20)
    web.open(3, 1)
    assert not rehearsed(web)


def test_a_service_that_is_not_served_here_is_left_alone():
    web = Node(pods(1), on_endpoint_gone=OnEndpointGone.RESET)
    web.open(3)
    assert web.endings.choose(web.service, (), (), {WEB: web.held}, 0) == []


def test_services_that_are_gone_are_forgotten():
    web = Node(pods(1, 2), rebalance=Rebalance(30, 1))
    web.open(1, 10)
    assert web.ended().total() == 1
    web.endings.keep({ServiceName("default", "web")})
    assert web.ended().total() == 0
    web.endings.keep(())
    assert web.ended().total() == 1
