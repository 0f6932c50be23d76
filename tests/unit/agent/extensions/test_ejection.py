# SPDX-License-Identifier: Apache-2.0
"""The loop checks failed connections while a Service has ejection, and sends events to users."""

from dataclasses import replace

import pytest

from ebpflb.agent.loop import Periods
from ebpflb.dataplane.layout.structs import LbFailures
from ebpflb.dataplane.view.snapshot import read_frontends
from ebpflb.model.address import format_address
from ebpflb.model.endpoint import PackedEndpoints
from tests.bpf.harness.numbers import u32
from tests.builders import endpoint, endpoint_slice, service, service_port
from tests.unit.agent.conftest import Bench
from tests.unit.agent.node import MAP_ERROR

WEB = service("web", ejection=3)
QUIET = service("web", service_port())
FOUR = endpoint_slice("web-1", *(endpoint(f"10.1.0.{number}") for number in range(1, 5)))


@pytest.fixture
def watching(bench: Bench) -> Bench:
    bench.say(WEB, FOUR)
    bench.turn()
    return bench


def fail(bench: Bench, index: int, in_a_row: int) -> None:
    bench.node.maps["lb_failures"].update(u32(index), bytes(LbFailures(in_a_row=in_a_row)))


def offered(bench: Bench) -> list[str]:
    (found,) = read_frontends(bench.node.maps)
    return [format_address(each.address) for each in found.frontend.local.backends]


def test_nothing_is_read_without_ejection(bench: Bench):
    bench.say(QUIET, FOUR)
    bench.turn()
    assert "failures" not in bench.turn(100)
    bench.say(WEB)
    bench.turn()
    assert "failures" in bench.turn(1)


def test_an_endpoint_that_fails_is_left_out_within_a_second(watching: Bench, caplog):
    caplog.set_level("INFO")
    fail(watching, 1, 3)
    assert watching.turn(1)[:2] == ["failures", "apply default/web"]
    assert offered(watching) == ["10.1.0.1", "10.1.0.3", "10.1.0.4"]
    assert watching.report()["ejected_endpoints"] == 1
    samples = watching.samples()
    assert samples["ebpflb_ejected_endpoints"] == 1
    assert samples["ebpflb_endpoint_ejections_total"] == 1
    (announced,) = watching.announced
    assert (str(announced.about), announced.reason) == ("Service default/web", "EndpointEjected")
    assert announced.note == (
        "node-a sends no new connections to 10.1.0.2:8080 for 10 s: "
        "3 in a row were refused or not answered"
    )
    assert "endpoint ejected: it gets no new connections" in caplog.messages
    watching.turn(10)
    assert len(offered(watching)) == 4
    fail(watching, 1, 0)
    watching.turn(1)
    assert "endpoint no longer ejected" in caplog.messages
    assert watching.report()["ejected_endpoints"] == 0
    assert watching.samples()["ebpflb_ejected_endpoints"] == 0


def test_the_number_is_of_what_is_in_force(make_bench):
    bench = make_bench(periods=Periods(min_sync=5))
    bench.say(WEB, FOUR)
    bench.turn()
    fail(bench, 1, 3)
    assert bench.turn(1) == ["failures"]
    assert (len(offered(bench)), bench.report()["ejected_endpoints"]) == (4, 0)
    bench.turn(5)
    assert (len(offered(bench)), bench.report()["ejected_endpoints"]) == (3, 1)


def test_the_endpoints_of_a_service_that_has_gone_do_not_count(watching: Bench):
    fail(watching, 1, 3)
    watching.turn(1)
    assert watching.report()["ejected_endpoints"] == 1
    watching.say(gone=(WEB, FOUR))
    watching.turn()
    assert watching.report()["ejected_endpoints"] == 0
    assert watching.samples()["ebpflb_ejected_endpoints"] == 0


def test_events_are_few(watching: Bench):
    fail(watching, 0, 3)
    fail(watching, 1, 3)
    watching.turn(1)
    assert len(watching.announced) == 1
    watching.turn(10)
    fail(watching, 0, 2)
    watching.turn(1)
    assert len(watching.announced) == 1
    watching.turn(60)
    fail(watching, 0, 2)
    watching.turn(1)
    assert len(watching.announced) == 2


def test_it_ends_with_the_annotation(watching: Bench):
    fail(watching, 1, 3)
    watching.turn(1)
    watching.say(QUIET)
    watching.turn()
    assert len(offered(watching)) == 4
    watching.turn(1)
    assert watching.report()["ejected_endpoints"] == 0
    assert "failures" not in watching.turn(5)


def test_maps_that_cannot_be_read_are_tried_again(watching: Bench):
    fail(watching, 1, 3)
    watching.node.failures["failures"] = [MAP_ERROR]
    watching.turn(1)
    assert len(offered(watching)) == 4
    for _ in range(3):
        watching.turn(2)
    assert len(offered(watching)) == 3


def test_a_slice_that_changes_keeps_the_ejection(watching: Bench):
    fail(watching, 1, 3)
    watching.turn(1)
    watching.say(replace(FOUR, endpoints=PackedEndpoints([*FOUR.endpoints, endpoint("10.1.0.9")])))
    watching.turn()
    assert offered(watching) == ["10.1.0.1", "10.1.0.3", "10.1.0.4", "10.1.0.9"]
