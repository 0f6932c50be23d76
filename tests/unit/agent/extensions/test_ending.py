# SPDX-License-Identifier: Apache-2.0
"""The loop ends connections while a Service asks for it."""

from ebpflb.errors import ProbeError
from ebpflb.model.address import SocketAddress
from ebpflb.model.ending.endings import HeldConnection
from ebpflb.model.extensions.lifetime import MaxAge, OnEndpointGone, Rebalance
from tests.builders import CLUSTER_IP, address, endpoint, endpoint_slice, port_name, service
from tests.unit.agent.conftest import Bench

WEB = port_name()
VIP = SocketAddress(address(CLUSTER_IP), 80)
TWO = endpoint_slice("web-1", endpoint("10.1.0.1"), endpoint("10.1.0.2"))
GONE = service("web", on_endpoint_gone=OnEndpointGone.RESET)
EVEN = service("web", rebalance=Rebalance(30, 600))
PERIOD = 10


def hold(bench: Bench, pod: int, *cookies: int) -> None:
    backend = SocketAddress(address(f"10.1.0.{pod}"), 8080)
    bench.node.held[WEB] = [
        HeldConnection(cookie, VIP, False, backend, 100.0, 60.0) for cookie in cookies
    ]


def cookies(bench: Bench) -> list[int]:
    return [each.cookie for each in bench.node.held[WEB]]


def test_nothing_is_read_while_no_service_asks_for_it(bench: Bench):
    bench.say(service("web"), TWO)
    bench.turn()
    assert "held" not in bench.turn(100)
    bench.say(EVEN)
    bench.turn()
    assert "held" in bench.turn(PERIOD)
    bench.say(service("web"))
    bench.turn()
    bench.turn(PERIOD)
    assert "held" not in bench.turn(100)


def test_what_an_endpoint_leaves_is_ended_within_a_second(bench: Bench, caplog):
    caplog.set_level("INFO")
    bench.say(GONE, TWO)
    bench.turn()
    hold(bench, 3, 1, 2)
    bench.say(endpoint_slice("web-1", endpoint("10.1.0.2")))
    bench.turn()
    bench.turn(1)
    assert cookies(bench) == []
    found = bench.metrics.registry.get_sample_value(
        "ebpflb_connections_ended_total", {"reason": "endpoint_gone"}
    )
    assert found == 2
    assert "connections ended" in caplog.text


def test_surplus_is_ended_again_soon_while_there_is_any(bench: Bench):
    bench.say(EVEN, TWO)
    bench.turn()
    hold(bench, 1, *range(400))
    bench.turn(PERIOD)
    # 600 a minute are 100 in 10 s.
    assert len(cookies(bench)) == 300
    bench.turn(2)
    assert len(cookies(bench)) == 280


def test_passes_that_take_long_leave_the_loop_its_time(bench: Bench, monkeypatch):
    look = bench.node.held_connections

    def slowly(ports):
        bench.clock.now += 2
        return look(ports)

    monkeypatch.setattr(bench.node, "held_connections", slowly)
    bench.say(GONE, TWO)
    bench.turn()
    assert "held" in bench.turn(1)
    bench.say(endpoint_slice("web-1", endpoint("10.1.0.2")))
    bench.turn()
    # 19 times as long.
    assert "held" not in bench.turn(35)
    assert "held" in bench.turn(2)


DRY_RUN = Rebalance(30, 600, is_dry_run=True)


def test_a_dry_run_only_says_so(bench: Bench, caplog):
    caplog.set_level("INFO")
    bench.say(service("web", rebalance=DRY_RUN), TWO)
    bench.turn()
    hold(bench, 1, 1, 2, 3, 4)
    bench.turn(PERIOD)
    assert cookies(bench) == [1, 2, 3, 4]
    assert "would be ended" in caplog.text


def test_beside_a_dry_run_the_others_are_ended(bench: Bench, caplog):
    caplog.set_level("INFO")
    bench.say(service("web", rebalance=DRY_RUN, max_age=MaxAge(60)), TWO)
    bench.turn()
    hold(bench, 1, 1, 2, 3, 4)
    bench.turn(PERIOD)
    assert cookies(bench) == []
    assert "would be ended" in caplog.text


def test_an_error_is_logged_once_and_the_next_pass_tries_again(bench: Bench, caplog):
    bench.say(service("web", max_age=MaxAge(60)), TWO)
    bench.turn()
    hold(bench, 1, 1)
    bench.node.failures["held"] = [ProbeError("not permitted"), ProbeError("not permitted")]
    for _ in range(3):
        bench.turn(PERIOD)
    assert caplog.text.count("not permitted") == 1
    assert cookies(bench) == []
