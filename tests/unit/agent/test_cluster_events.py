# SPDX-License-Identifier: Apache-2.0
"""Events that only a cluster source has: errors before everything is known, and this agent's
Node.
"""

from dataclasses import replace

import pytest

from ebpflb.agent.loop import COMPARE_SECONDS, Wakeup
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.source.interface import SourceEvent
from tests.builders import NODE, OTHER_NODE, endpoint, endpoint_slice, node, service

REASON = "cannot reach the API server at https://192.0.2.1:6443: Connection refused"
AWAY: dict[str | ObjectKey, str] = {"api": REASON}
GOING = replace(node(), eligible=False)


def event(*upserts: ApiObject, initial: bool = False) -> SourceEvent:
    return SourceEvent(upserts, (), {}, initial)


def failure() -> SourceEvent:
    return SourceEvent((), (), AWAY, initial=False)


def test_nothing_is_programmed_before_the_source_has_listed_everything(bench):
    bench.agent.tell(event(service("web"), endpoint_slice("web-1", endpoint())))
    bench.agent.tell(Wakeup.NETWORK)
    assert bench.turn() == []
    assert bench.turn(COMPARE_SECONDS) == []
    assert bench.first_syncs == 0
    assert bench.report()["in_sync"] is False
    bench.agent.tell(event(initial=True))
    assert bench.turn() == ["start", "follow"]
    assert bench.node.served() == {"web": ["10.1.0.1"]}
    assert bench.report()["in_sync"] is True


def test_errors_are_shown_before_the_source_has_listed_everything(bench, caplog):
    bench.agent.tell(failure())
    assert bench.turn() == []
    assert bench.report()["source_errors"] == AWAY
    assert bench.report()["healthy"] is True
    assert 'ebpflb_source_errors{file="api"} 1.0' in bench.metrics.page().body.decode()
    assert caplog.text.count(REASON) == 1


def test_errors_do_not_take_away_what_is_in_force(bench):
    bench.agent.tell(event(service("web"), endpoint_slice("web-1", endpoint()), initial=True))
    bench.turn()
    bench.agent.tell(failure())
    assert bench.turn() == []
    assert bench.node.served() == {"web": ["10.1.0.1"]}
    assert bench.report()["in_sync"] is True


def test_a_node_is_eligible_until_its_node_object_says_otherwise(bench):
    assert bench.health.readiness()[0]
    bench.say(node(), replace(node(OTHER_NODE), eligible=False))
    bench.turn()
    assert bench.health.readiness()[0]
    bench.say(GOING)
    bench.turn()
    assert not bench.health.readiness()[0]
    assert bench.health.is_alive()
    bench.say(node(OTHER_NODE))
    bench.turn()
    assert not bench.health.readiness()[0]
    bench.say(node())
    bench.turn()
    assert bench.health.readiness()[0]


@pytest.mark.parametrize("initial", [True, False])
def test_a_node_whose_node_object_is_missing_is_not_eligible(bench, initial: bool):
    if not initial:
        bench.say(node())
    bench.say(gone=(ObjectKey(Kind.NODE, "", NODE),))
    bench.turn()
    assert not bench.health.readiness()[0]
    bench.say(node())
    bench.turn()
    assert bench.health.readiness()[0]


def test_other_things_that_go_do_not_make_a_node_ineligible(bench):
    bench.say(node(), node(OTHER_NODE), service(NODE))
    bench.say(gone=(node(OTHER_NODE), service(NODE)))
    bench.turn()
    assert bench.health.readiness()[0]


def test_a_node_object_that_is_replaced_counts_as_it_is_now(bench):
    gone = (key_of(node()),)
    bench.agent.tell(SourceEvent((node(),), gone, {}, initial=True))
    bench.turn()
    assert bench.health.readiness()[0]
