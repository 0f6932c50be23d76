# SPDX-License-Identifier: Apache-2.0
"""Which Services get lookup tables: no namespace uses another one's share."""

from dataclasses import replace
from typing import Any

import pytest

from ebpflb.model.admission.tables import MOST_OF_NAMESPACE, MOST_TABLE_SLOTS
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Service, ServiceName, TrafficPolicy
from ebpflb.words.scheduler import TABLE_SIZE, Scheduler
from tests.builders import NODE, endpoint, endpoint_slice, port_name, service, service_port

MAGLEV, RANDOM = Scheduler.MAGLEV, Scheduler.RANDOM
# Ports that fill the budget of a namespace, and of all.
MOST, MOST_IN_ALL = MOST_OF_NAMESPACE // TABLE_SIZE, MOST_TABLE_SLOTS // TABLE_SIZE


def wanting(name: str, ports: int, *, namespace: str = "tenant", **fields: Any) -> Service:
    """A Service with Maglev and as many ports."""
    found = (
        service_port(
            f"10.{ord(name[0])}.{number // 250}.{number % 250}", name=port_name(f"p{number}")
        )
        for number in range(ports)
    )
    made = service(name, *found, **{"scheduler": MAGLEV, **fields})
    return replace(made, name=ServiceName(namespace, name))


def told(*services: Service, **defaults: Any) -> Changes:
    changes = Changes(NODE, defaults=Defaults(**defaults))
    for each in services:
        changes.set(each)
    changes.take()
    return changes


def without(changes: Changes) -> list[str]:
    """The names of the Services that are reported as having no table."""
    return [each.service.name for each in changes.problems() if each.event == "NoLookupTable"]


def test_a_service_without_room_uses_random_and_says_so():
    changes = told(wanting("a", MOST), wanting("b", 1))
    plan = changes.plan(ServiceName("tenant", "b"))
    assert {(each.scheduler, each.table_size) for each in plan} == {(RANDOM, 0)}
    plan = changes.plan(ServiceName("tenant", "a"))
    assert {(each.scheduler, each.table_size) for each in plan} == {(MAGLEV, TABLE_SIZE)}
    (problem,) = changes.problems()
    assert problem.service.name == "b"
    assert problem.text.startswith("scheduler random without weights instead: ")


def test_a_namespace_takes_no_room_of_another():
    tenant = [wanting(f"t{number}", MOST // 2) for number in range(9)]
    other = wanting("other", MOST, namespace="other", created="2030-01-01T00:00:00Z")
    assert without(told(*tenant, other)) == [f"t{number}" for number in range(2, 9)]


def test_all_together_take_no_more_than_there_is():
    namespaces = range(MOST_IN_ALL // MOST + 2)
    some = [
        wanting("web", MOST, namespace=f"n{number}", created=f"20{number:02}-01-01T00:00:00Z")
        for number in reversed(namespaces)
    ]
    changes = told(*some)
    assert [each.service.namespace for each in changes.problems()] == [
        f"n{number}" for number in namespaces[MOST_IN_ALL // MOST :]
    ]


@pytest.mark.parametrize("is_reversed", [False, True])
def test_the_older_service_has_the_table_whoever_came_first(is_reversed: bool):
    pair = [wanting("new", MOST, created="2025-01-01T00:00:00Z")]
    pair += [wanting("old", MOST, created="2024-01-01T00:00:00Z")]
    assert without(told(*(reversed(pair) if is_reversed else pair))) == ["new"]


def test_room_is_given_back():
    first, second = wanting("a", MOST), wanting("b", MOST)
    changes = told(first, second)
    changes.remove(key_of(first))
    assert changes.take() == {first.name, second.name}
    assert changes.problems() == ()
    changes.set(first)
    assert second.name in changes.take()
    assert without(changes) == ["b"]
    changes.set(first.annotated_with(scheduler=None))
    assert second.name in changes.take()
    assert changes.problems() == ()


def test_endpoints_do_not_matter_to_who_has_a_table():
    changes = told(wanting("a", MOST), wanting("b", 1))
    slices = endpoint_slice("a-1", endpoint(), endpoint("10.1.0.2"), service="a")
    changes.set(replace(slices, namespace="tenant"))
    assert changes.take() == {ServiceName("tenant", "a")}
    assert without(changes) == ["b"]


def test_policy_local_needs_a_table_more_and_other_schedulers_none():
    local = [
        replace(each, external_policy=TrafficPolicy.LOCAL, node_port=30080 + number)
        for number, each in enumerate(wanting("x", MOST // 2 + 1).ports)
    ]
    assert without(told(replace(wanting("x", 1), ports=tuple(local)))) == ["x"]
    assert without(told(wanting("x", 2 * MOST, scheduler=Scheduler.ROUND_ROBIN))) == []
    assert without(told(wanting("x", MOST + 1, scheduler=Scheduler.SOURCE_HASH))) == ["x"]


def test_the_options_decide_who_needs_how_much():
    assert without(told(wanting("x", MOST + 1, scheduler=None))) == []
    assert without(told(wanting("x", MOST + 1, scheduler=None), scheduler=MAGLEV)) == ["x"]
    assert without(told(wanting("x", MOST + 1), table_size=251)) == []
