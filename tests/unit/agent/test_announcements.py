# SPDX-License-Identifier: Apache-2.0
"""Events for users of the API about their Services, and how often they are sent."""

from dataclasses import replace

from ebpflb.errors import LoadError
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.source.interface import Announcement
from tests.builders import NODE, endpoint, endpoint_slice, service, service_port

SMALL = {"lb_slots": 2}
PODS = [endpoint(f"10.1.0.{last}") for last in range(1, 5)]
LATE = service("late", service_port("10.96.0.99"))


def key(name: str) -> ObjectKey:
    return ObjectKey(Kind.SERVICE, "default", name)


def test_the_loser_of_a_conflict_is_reported_once(bench):
    bench.say(service("a"), service("b"))
    bench.turn()
    note = "default/b does not get TCP 10.96.0.10 port 80: default/a has it"
    assert bench.announced == [Announcement(key("b"), "FrontendConflict", note)]
    assert bench.announced[0].warning
    bench.say(LATE)
    bench.turn()
    bench.say(service("a", service_port(affinity_timeout=60)))
    bench.turn()
    assert len(bench.announced) == 1


def test_a_conflict_that_comes_back_is_reported_again(bench):
    bench.say(service("a"), service("b"))
    bench.turn()
    bench.say(gone=(service("a"),))
    bench.turn()
    bench.say(service("a"))
    bench.turn()
    assert [each.about for each in bench.announced] == [key("b"), key("b")]


def test_the_younger_service_is_reported_when_the_age_decides(bench):
    old = replace(service("z"), created="2024-01-01T00:00:00Z")
    bench.say(old, replace(service("a"), created="2025-01-01T00:00:00Z"))
    bench.turn()
    assert [each.about for each in bench.announced] == [key("a")]
    assert bench.announced[0].note.endswith("default/z has it")


def test_a_service_that_does_not_fit_is_reported_once(make_bench):
    bench = make_bench(SMALL)
    bench.node.failures["grow"] = [LoadError("no memory")] * 9
    bench.say(service("web"), endpoint_slice("web-1", *PODS))
    bench.turn()
    (announced,) = bench.announced
    assert announced.about == key("web")
    assert announced.reason == "DoesNotFit"
    assert announced.note == (
        f"{NODE} keeps serving its old state: map lb_slots: update failed: Argument list too long"
    )
    bench.say(LATE)
    bench.turn()
    assert "resync" in bench.turn(1)
    assert len(bench.announced) == 1


def test_a_service_that_does_not_fit_again_is_reported_again(make_bench):
    bench = make_bench(SMALL)
    bench.node.failures["grow"] = [LoadError("no memory")] * 9
    bench.say(service("web"), endpoint_slice("web-1", *PODS))
    bench.turn()
    bench.say(endpoint_slice("web-1", *PODS[:1]))
    bench.turn()
    assert bench.report()["refused"] == {}
    bench.say(endpoint_slice("web-1", *PODS))
    bench.turn()
    assert [each.reason for each in bench.announced] == ["DoesNotFit", "DoesNotFit"]


def test_a_service_that_fits_after_more_room_was_made_is_not_reported(make_bench):
    bench = make_bench(SMALL)
    bench.say(service("web"), endpoint_slice("web-1", *PODS))
    assert "grow" in bench.turn()
    assert bench.announced == []


def test_a_service_that_is_served_is_not_reported(bench):
    bench.say(service("web"), endpoint_slice("web-1", endpoint()), LATE)
    bench.turn()
    assert bench.announced == []
