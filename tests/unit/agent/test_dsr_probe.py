# SPDX-License-Identifier: Apache-2.0
"""The loop probes the pods' nodes for DSR support; tunnels lead to those that have it."""

import logging
from typing import Any

import pytest

from ebpflb.agent.timers import Task
from ebpflb.model.address import Address, Family, format_address
from ebpflb.model.dsr import Peer
from ebpflb.model.dsr_probe import ANSWER_SECONDS, STEP_SECONDS
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Dsr
from tests.builders import NODE, OTHER_NODE, endpoint, endpoint_slice, node, service, service_port
from tests.unit.agent.conftest import Bench
from tests.unit.agent.node import MAP_ERROR

POD, POD_C = "10.1.0.2", "10.1.0.3"
B, C = Peer(OTHER_NODE, Family.IPV4), Peer("node-c", Family.IPV4)
WEB = service("web", service_port(node_port=30080))
PODS = endpoint_slice("web-1", endpoint(POD, OTHER_NODE), endpoint(POD_C, "node-c"))
NODES = (
    node(NODE, addresses=("192.0.2.1",)),
    node(OTHER_NODE, addresses=("192.0.2.2",)),
    node("node-c", addresses=("192.0.2.3",)),
)
SILENT = "nodes do not answer on the DSR port: packets for their pods are masqueraded"
ANSWERING = "nodes accept DSR packets"


@pytest.fixture
def bench(make_bench, caplog: pytest.LogCaptureFixture) -> Bench:
    """Both nodes reply; none has been probed yet."""
    caplog.set_level(logging.INFO)
    bench: Bench = make_bench(defaults=Defaults(dsr=Dsr.ALL))
    bench.node.answering = {B, C}
    bench.say(WEB, PODS, *NODES)
    bench.turn()
    return bench


def run(bench: Bench, seconds: float) -> None:
    """Run the loop as its timers require."""
    end = bench.clock.now + seconds
    while True:
        wait = bench.agent._timers.wait()
        if wait is None or bench.clock.now + wait > end:
            break
        bench.turn(wait)
    bench.clock.now = end


def tunneled(bench: Bench) -> dict[str, str]:
    pods = bench.node.maps["lb_pod_nodes"].items()
    return {format_address(Address(pod)): format_address(Address(to)) for pod, to in pods}


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, dict[str, object]]]:
    return [
        (each.levelname, each.message, vars(each)["ebpflb_fields"])
        for each in caplog.records
        if each.message in (SILENT, ANSWERING)
    ]


def test_tunnels_lead_to_a_node_as_soon_as_it_has_answered(bench: Bench):
    assert tunneled(bench) == {}
    run(bench, 2 * STEP_SECONDS)
    assert {each.peer for each in bench.node.asked} == {B, C}
    assert {len(each.nonce) for each in bench.node.asked} == {16}
    assert len({each.nonce for each in bench.node.asked}) == 2
    assert tunneled(bench) == {POD: "192.0.2.2", POD_C: "192.0.2.3"}


def test_users_hear_of_the_nodes_that_do_not_answer(bench: Bench, caplog: pytest.LogCaptureFixture):
    bench.node.answering = {B}
    run(bench, 2 * STEP_SECONDS)
    assert tunneled(bench) == {POD: "192.0.2.2"}
    assert logged(caplog) == []
    assert bench.report()["dsr_peers"] == {"asked": 2, "reachable": 1, "unreachable": []}
    run(bench, 4 * ANSWER_SECONDS)
    assert bench.report()["dsr_peers"] == {
        "asked": 2,
        "reachable": 1,
        "unreachable": [{"node": "node-c", "family": "IPv4", "why": "no answer"}],
    }
    assert peers(bench) == {"reachable": 1, "unreachable": 1}
    assert logged(caplog) == [
        ("INFO", ANSWERING, {"nodes": "node-b (IPv4)", "count": 1}),
        (
            "WARNING",
            SILENT,
            {"nodes": "node-c (IPv4)", "count": 1, "why": "no answer"},
        ),
    ]
    run(bench, 60)
    assert len(logged(caplog)) == 2


def peers(bench: Bench) -> dict[str, float]:
    collected = bench.metrics.registry.collect()
    return {
        each.labels["state"]: each.value
        for family in collected
        for each in family.samples
        if each.name == "ebpflb_dsr_peers"
    }


def test_packets_are_masqueraded_when_a_node_falls_silent_until_it_answers_again(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    run(bench, 30)
    bench.node.answering = {C}
    run(bench, 20)
    assert tunneled(bench) == {POD_C: "192.0.2.3"}
    bench.node.answering = {B, C}
    run(bench, 15)
    assert tunneled(bench) == {POD: "192.0.2.2", POD_C: "192.0.2.3"}
    assert [(level, shown["count"]) for level, _, shown in logged(caplog)] == [
        ("INFO", 2),
        ("WARNING", 1),
        ("INFO", 1),
    ]


def test_questions_that_cannot_be_sent_say_why(bench: Bench, caplog: pytest.LogCaptureFixture):
    bench.node.unsent = dict.fromkeys((B, C), "Network is unreachable")
    run(bench, 60)
    assert tunneled(bench) == {}
    ((level, _, shown),) = logged(caplog)
    assert (level, shown["nodes"]) == ("WARNING", "node-b (IPv4), node-c (IPv4)")
    assert shown["why"] == "Network is unreachable"
    found = bench.report()["dsr_peers"]["unreachable"]
    assert [each["why"] for each in found] == ["Network is unreachable"] * 2


def test_a_line_of_the_log_does_not_wait_for_ever_for_nodes_that_come(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    for number in range(8):
        bench.say(node("node-c", addresses=(f"192.0.2.{10 + number}",)))
        bench.node.answering = {B}
        run(bench, 1)
    assert [shown["nodes"] for _, _, shown in logged(caplog)] == ["node-b (IPv4)"]


def test_nodes_that_come_together_are_reported_together(
    bench: Bench, caplog: pytest.LogCaptureFixture
):
    bench.say(gone=(PODS,))
    bench.turn()
    run(bench, 30)
    bench.say(PODS)
    bench.node.answering = {B}
    bench.turn()
    run(bench, 0.9 * ANSWER_SECONDS)
    assert logged(caplog) == []
    bench.node.answering = {B, C}
    run(bench, ANSWER_SECONDS)
    assert [shown["count"] for _, _, shown in logged(caplog)] == [2]


def test_nobody_is_asked_without_pods_elsewhere(bench: Bench, make_bench):
    run(bench, 1)
    bench.say(gone=(PODS,))
    bench.turn()
    assert tunneled(bench) == {}
    del bench.node.asked[:]
    run(bench, 100)
    assert bench.node.asked == []
    bench = make_bench(defaults=Defaults(dsr=Dsr.ANNOTATED))
    bench.say(WEB, PODS, *NODES)
    bench.turn()
    run(bench, 1)
    assert bench.node.asked == []
    assert bench.report()["dsr_peers"]["asked"] == 0
    assert peers(bench) == {"reachable": 0, "unreachable": 0}


def test_nobody_is_asked_without_dsr(make_bench):
    bench = make_bench()
    bench.say(WEB, PODS, *NODES)
    bench.turn()
    assert not bench.agent._timers.is_started(Task.PROBE)
    assert bench.report()["dsr_peers"] is None
    assert peers(bench) == {"reachable": 0, "unreachable": 0}


def test_a_node_with_another_address_gets_nothing_before_it_answers_there(bench: Bench):
    run(bench, 1)
    bench.node.answering = {C}
    seen = []
    write = bench.node.tunnels.write

    def watch(*arguments: Any) -> None:
        write(*arguments)
        seen.append(tunneled(bench))

    bench.node.tunnels.write = watch  # type: ignore[assignment]
    bench.say(node(OTHER_NODE, addresses=("192.0.2.9",)), service("new"))
    bench.turn()
    assert seen == [{POD_C: "192.0.2.3"}]
    bench.node.answering = {B, C}
    run(bench, 2)
    assert tunneled(bench) == {POD: "192.0.2.9", POD_C: "192.0.2.3"}


def test_a_restarted_agent_leaves_tunnels_as_they_are_until_it_knows_better(
    bench: Bench, make_bench
):
    run(bench, 1)
    again = make_bench(defaults=Defaults(dsr=Dsr.ALL))
    again.node.maps = bench.node.maps
    again.node.answering = {B}
    again.say(WEB, PODS, *NODES)
    for _ in range(20):
        again.turn()
    assert tunneled(again) == {POD: "192.0.2.2", POD_C: "192.0.2.3"}
    run(again, 4 * ANSWER_SECONDS)
    assert tunneled(again) == {POD: "192.0.2.2"}


def test_asking_goes_on_after_a_write_that_failed(bench: Bench):
    run(bench, 1)
    bench.node.failures["resync"] = [MAP_ERROR] * 3
    bench.agent._writer.compare_everything()
    run(bench, 20)
    del bench.node.asked[:]
    run(bench, 20)
    assert {each.peer for each in bench.node.asked} == {B, C}
