# SPDX-License-Identifier: Apache-2.0
import random

import pytest

from ebpflb.kubectl.ui.tally import Tally, total
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from tests.ui.flows import dropped, failed, flow, of_node, refused


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def traffic(clock):
    return EdgeTraffic(clock)


def anything(_: object) -> bool:
    return True


def summed(traffic: EdgeTraffic, window: int = 60) -> Tally:
    return total(traffic.read(window).tallies.values())


def test_everything_is_counted_once(traffic):
    for made in (flow(), flow(), failed(), refused(), dropped(), dropped("no_route")):
        traffic.add(of_node("node1", made))
    found = summed(traffic)
    assert (found.connections, found.failed, found.refused, found.dropped) == (6, 1, 1, 2)
    assert (found.sent, found.received) == (200, 4000)
    assert found.reasons == {
        ("failed", "no answer"): 1,
        ("refused", "no endpoint"): 1,
        ("dropped", "source range"): 1,
        ("dropped", "no route"): 1,
    }


def test_a_connection_whose_start_and_end_are_recorded_counts_once(traffic):
    for _ in range(3):
        traffic.add(of_node("node1", flow(event="start", ended=None, bytes=None, seconds=None)))
        traffic.add(of_node("node1", flow()))
    traffic.add(of_node("node1", flow(event="start", ended=None, bytes=None, seconds=None)))
    assert summed(traffic).connections == 4


def test_the_window_slides(traffic, clock):
    traffic.add(of_node("node1", flow()))
    clock.now += 35
    traffic.add(of_node("node1", flow()))
    assert summed(traffic).connections == 2
    clock.now += 30
    assert summed(traffic).connections == 1
    assert summed(traffic, 300).connections == 2
    clock.now += 300
    assert summed(traffic, 300).connections == 0


def test_a_rate_covers_the_time_that_was_counted(traffic, clock):
    assert traffic.read(60).seconds == 1
    clock.now += 20
    assert traffic.read(60).seconds == 20
    clock.now += 1000
    assert 40 <= traffic.read(60).seconds <= 60


def test_times_are_right_within_a_tenth(traffic):
    times = [random.Random(1).lognormvariate(-5, 1) for _ in range(1000)]
    for seconds in times:
        traffic.add(of_node("node1", flow(seconds=seconds)))
    plain = summed(traffic).plain()["seconds"]
    assert plain["p50"] == pytest.approx(sorted(times)[500], rel=0.1)
    assert plain["p95"] == pytest.approx(sorted(times)[950], rel=0.1)
    assert "seconds" not in Tally().plain()


def test_history_reports_what_went_wrong_when(traffic, clock):
    traffic.add(of_node("node1", flow()))
    clock.now += 40
    traffic.add(of_node("node1", failed()))
    traffic.add(of_node("node1", flow()))
    history = traffic.history(anything)
    assert len(history) == 15
    assert history[-3:] == [(1000, 1, 0), (1020, 0, 0), (1040, 2, 1)]
    assert traffic.history(lambda edge: edge.verdict == "failed")[-1] == (1040, 1, 1)


def test_edges_beyond_the_limit_are_the_others_of_their_service(clock):
    traffic = EdgeTraffic(clock, most_edges=4)
    for number in range(20):
        traffic.add(of_node("node1", flow(client=f"shop/pod-{number}", service="shop/web")))
    for number in range(100):
        traffic.add(of_node("node1", flow(service=f"shop/web-{number}")))
    edges = traffic.read(60).tallies
    assert summed(traffic).connections == 120
    assert len(edges) == 9
    names = [edge.service for edge in edges if edge.client.kind == "others"]
    assert "shop/web" in names
    assert "others" in names


def test_addresses_from_outside_leave_room_for_pods(clock):
    traffic = EdgeTraffic(clock, most_edges=10)
    for number in range(50):
        outside = {"address": f"198.51.100.{number}"}
        traffic.add(of_node("node1", flow(client=outside, source="elsewhere")))
    traffic.add(of_node("node1", flow(client="shop/cart-0")))
    assert "shop/cart-0" in [edge.client.name for edge in traffic.read(60).tallies]


def test_what_is_healthy_leaves_room_for_problems(clock):
    traffic = EdgeTraffic(clock, most_edges=8)
    for number in range(20):
        traffic.add(of_node("node1", flow(client=f"shop/pod-{number}")))
    traffic.add(of_node("node1", failed(client="shop/unlucky")))
    clients = [edge.client.name for edge in traffic.read(60).tallies]
    assert "shop/unlucky" in clients
    assert len(clients) == 6 + 1 + 1


def test_all_that_may_not_be_seen_is_one_edge(traffic):
    hidden = {"address": "", "pod": "another namespace"}
    for port in range(9):
        made = flow(client={**hidden, "port": port}, seq=port) | {"backend": hidden}
        traffic.add(of_node("node1", made))
    ((edge, tally),) = traffic.read(60).tallies.items()
    assert (edge.client.name, edge.target.name) == ("another namespace", "another namespace")
    assert tally.connections == 9


def test_edges_without_traffic_make_room(clock):
    traffic = EdgeTraffic(clock, most_edges=4)
    for number in range(4):
        traffic.add(of_node("node1", flow(client=f"shop/old-{number}")))
    clock.now += 400
    traffic.add(of_node("node1", flow(client="shop/new")))
    assert [edge.client.name for edge in traffic.read(300).tallies] == ["shop/new"]


def test_what_went_wrong_is_not_pushed_out(traffic):
    traffic.add(of_node("node1", failed(client="shop/unlucky")))
    for _ in range(9000):
        traffic.add(of_node("node1", flow()))
    kept = traffic.latest(lambda each: each.edge.verdict == "failed", 10)
    assert [each.edge.client.name for each in kept] == ["shop/unlucky"]
    assert traffic.flow(kept[0].number) == kept[0]
    assert traffic.flow(2) is None


def test_flows_that_went_well_leave_room_for_the_others(traffic):
    def verdicts():
        return [each.edge.verdict for each in traffic.latest(anything, 10)]

    for _ in range(3):
        traffic.add(of_node("node1", failed()))
    for _ in range(20):
        traffic.add(of_node("node1", flow()))
    assert verdicts() == ["forwarded"] * 7 + ["failed"] * 3
    for _ in range(20):
        traffic.add(of_node("node1", failed()))
    assert verdicts() == ["failed"] * 5 + ["forwarded"] * 5


def test_the_latest_flows_come_first(traffic):
    for made in (flow(), failed(), flow()):
        traffic.add(of_node("node1", made))
    assert [each.number for each in traffic.latest(anything, 2)] == [3, 2]


def test_memory_is_bounded_whatever_agents_send(clock):
    traffic = EdgeTraffic(clock, most_edges=100)
    chance = random.Random(1)
    sizes = []
    for _ in range(3):
        for _ in range(3000):
            text = "".join(chance.choices("abc", k=64))
            traffic.add(
                of_node("node1", dropped(text, client=f"{text}/x", service=f"{text[::-1]}/y"))
            )
        sizes.append(len(traffic.read(60).tallies))
        clock.now += 10
    assert max(sizes) <= 201
    reasons = [len(tally.reasons) for tally in traffic.read(60).tallies.values()]
    assert max(reasons) <= 21
