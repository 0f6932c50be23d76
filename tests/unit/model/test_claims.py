# SPDX-License-Identifier: Apache-2.0
"""Changes: which of several Services gets a frontend that all of them claim."""

from dataclasses import replace

import pytest

from ebpflb.model.admission.claims import Conflict
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import key_of
from ebpflb.model.plan import frontend_keys
from ebpflb.model.service import Service, ServiceName
from tests.builders import address, service, service_port
from tests.unit.model.known import known

A, B = ServiceName("default", "a"), ServiceName("default", "b")
OLD, YOUNG, YOUNGEST = "2024-01-01T00:00:00Z", "2024-01-01T00:00:01Z", "2025-01-01T00:00:00Z"
(KEY,) = frontend_keys(service())


def aged(name: str, created: str, cluster_ip: str = "10.96.0.10") -> Service:
    """A Service that claims the same frontend as all others here."""
    return replace(service(name, service_port(cluster_ip)), created=created)


def asking(name: str, created: str, **ips: str) -> Service:
    """A Service that claims that frontend by other fields."""
    found = {field: (address(ip),) for field, ip in ips.items()}
    port = service_port(f"10.96.1.{ord(name)}", **found)
    return replace(service(name, port), created=created)


def owner(changes: Changes) -> ServiceName:
    """The Service that gets the frontend; no other one has a plan."""
    (name,) = (name for name in changes.names() if changes.plan(name))
    return name


@pytest.mark.parametrize("older_first", [True, False])
def test_the_older_service_gets_the_frontend_whoever_came_first(older_first: bool):
    pair = [aged("b", OLD), aged("a", YOUNG)]
    changes = known(*(pair if older_first else reversed(pair)))
    assert owner(changes) == B
    assert changes.conflicts() == (Conflict(KEY, winner=B, loser=A),)


def test_of_one_age_the_first_name_gets_the_frontend():
    changes = known(aged("b", OLD), aged("a", OLD))
    assert owner(changes) == A
    assert changes.conflicts() == (Conflict(KEY, winner=A, loser=B),)


def test_of_one_age_and_name_the_first_namespace_gets_the_frontend():
    elsewhere = replace(aged("a", OLD), name=ServiceName("another", "a"))
    assert owner(known(aged("a", OLD), elsewhere)) == ServiceName("another", "a")


def test_losers_are_reported_by_their_age():
    changes = known(aged("a", YOUNGEST), aged("b", YOUNG), aged("c", OLD))
    assert [each.loser for each in changes.conflicts()] == [B, A]


def test_a_younger_service_takes_nothing_from_an_older_one():
    changes = known(aged("b", OLD))
    changes.set(aged("a", YOUNG))
    assert changes.take() == {A, B}
    assert owner(changes) == B


def test_the_loser_gets_the_frontend_when_the_winner_goes():
    changes = known(aged("b", OLD), aged("a", YOUNG))
    changes.remove(key_of(aged("b", OLD)))
    assert changes.take() == {A, B}
    assert owner(changes) == A
    assert changes.conflicts() == ()


def test_the_oldest_loser_gets_the_frontend_when_the_winner_moves():
    changes = known(aged("c", OLD), aged("b", YOUNG), aged("a", YOUNGEST))
    changes.set(aged("c", OLD, "10.96.0.99"))
    assert changes.take() == {A, B, ServiceName("default", "c")}
    assert changes.conflicts() == (Conflict(KEY, winner=B, loser=A),)
    assert changes.plan(A) == ()


def test_a_service_that_was_recreated_has_lost_its_age():
    changes = known(aged("b", OLD), aged("a", YOUNG))
    changes.set(aged("b", YOUNGEST))
    assert changes.take() == {A, B}
    assert owner(changes) == A
    assert changes.conflicts() == (Conflict(KEY, winner=A, loser=B),)


def test_a_service_that_turns_out_older_gets_the_frontend():
    changes = known(aged("b", YOUNGEST), aged("a", YOUNG))
    changes.set(aged("b", OLD))
    assert changes.take() == {A, B}
    assert owner(changes) == B


def test_a_service_that_was_recreated_and_is_alone_is_planned_alone():
    changes = known(aged("a", OLD), aged("b", OLD, "10.96.0.20"))
    changes.set(aged("a", YOUNG))
    assert changes.take() == {A}


def test_other_changes_of_the_winner_leave_the_loser_alone():
    winner = aged("b", OLD)
    changes = known(winner, aged("a", YOUNG))
    (port,) = winner.ports
    changes.set(replace(winner, ports=(replace(port, affinity_timeout=60),)))
    assert changes.take() == {B}


EXTERNAL = asking("a", OLD, external_ips="10.96.0.10")
BALANCED = asking("b", YOUNG, load_balancer_ips="10.96.0.10")


def test_a_cluster_ip_comes_before_older_claims_to_its_address():
    changes = known(EXTERNAL, BALANCED, aged("c", YOUNGEST))
    c = ServiceName("default", "c")
    assert changes.owner(KEY) == c
    assert [each.key for each in changes.plan(c)] == [KEY]
    assert all(each.key != KEY for name in (A, B) for each in changes.plan(name))
    assert changes.conflicts() == (Conflict(KEY, c, B), Conflict(KEY, c, A))


def test_a_load_balancer_ip_comes_before_an_older_external_ip():
    assert known(EXTERNAL, BALANCED).conflicts() == (Conflict(KEY, winner=B, loser=A),)


def test_of_several_claims_of_one_service_the_best_counts():
    both = asking("b", YOUNG, external_ips="10.96.0.10", load_balancer_ips="10.96.0.10")
    assert known(EXTERNAL, both).owner(KEY) == B


def test_a_better_claim_to_the_same_address_takes_it_at_once():
    changes = known(EXTERNAL, asking("b", YOUNG, external_ips="10.96.0.10"))
    assert changes.owner(KEY) == A
    changes.set(BALANCED)
    assert changes.take() == {A, B}
    assert changes.owner(KEY) == B
