# SPDX-License-Identifier: Apache-2.0
"""Once an hour maps and Services are compared with what they should be, in parts."""

from ebpflb.agent import writer
from ebpflb.agent.loop import COMPARE_SECONDS, STEP_SECONDS, Periods
from tests.builders import endpoint, endpoint_slice
from tests.unit.agent.conftest import LATE, OTHER_SLICE, SLICE, WEB, Bench


def compare(bench):
    """The calls of a pass over all maps and Services."""
    calls = bench.turn(COMPARE_SECONDS)
    while bench.agent._writer._pass:
        calls += bench.turn(STEP_SECONDS)
    return calls


def test_everything_is_compared_once_an_hour_in_parts(served, monkeypatch):
    monkeypatch.setattr(writer, "_PART", 1)
    served.say(LATE)
    served.turn()
    calls = compare(served)
    assert calls.index("apply default/late") < calls.index("apply default/web")
    assert "resync" not in calls
    assert compare(served).count("apply default/web") == 1


def test_a_change_during_a_comparison_does_not_wait_for_its_end(served):
    served.turn(COMPARE_SECONDS)
    served.say(LATE)
    assert "apply default/late" in served.turn()
    assert "late" in served.node.served()


def test_a_change_that_is_not_written_yet_counts_in_a_comparison():
    bench = Bench(periods=Periods(min_sync=10))
    bench.say(WEB, SLICE)
    bench.turn()
    bench.turn(COMPARE_SECONDS)
    while bench.agent._writer._pass:
        bench.say(OTHER_SLICE)
        bench.turn(STEP_SECONDS)
    assert bench.node.served() == {"web": ["10.1.0.2"]}


def test_what_somebody_else_has_changed_in_a_map_is_found_and_made_right(served, caplog):
    frontends = served.node.maps["lb_frontends"]
    ((key, _),) = frontends.items()
    frontends.delete(key)
    assert served.node.served() == {}
    assert "resync" in compare(served)
    assert "a map has been changed by somebody else" in caplog.text
    assert served.node.served() == {"web": ["10.1.0.1"]}
    assert "resync" not in compare(served)


def test_a_plan_that_is_not_in_force_is_found(served):
    served.node.sync.apply({WEB.name: ()})
    assert "apply default/web" in compare(served)
    assert served.node.served() == {"web": ["10.1.0.1"]}


def test_a_change_in_the_turn_of_a_comparison_is_written_as_any_other(make_bench, monkeypatch):
    bench = make_bench({"lb_slots": 2})
    bench.say(WEB, SLICE)
    bench.turn()
    monkeypatch.setattr(bench.node, "compare", lambda: iter(()))
    bench.say(endpoint_slice("web-1", *(endpoint(f"10.1.0.{last}") for last in (1, 2, 3))))
    assert "grow" in bench.turn(COMPARE_SECONDS)
    assert len(bench.node.served()["web"]) == 3
