# SPDX-License-Identifier: Apache-2.0
"""The status of objects: what is ours is told, what is of others stays."""

from typing import Any

from ebpflb.gateway.policy.plan import plan
from ebpflb.words.gateway import CONTROLLER, FEATURES
from tests.unit.gateway.world import (
    NOW,
    RANGES,
    backend,
    found,
    gateway,
    gateway_class,
    own,
    planned,
    route,
    service,
    status,
)

LATER = "2026-01-01T00:00:09Z"
OF_OTHERS: dict[str, Any] = {
    "type": "example.com/Watched",
    "status": "True",
    "reason": "Seen",
    "message": "",
    "observedGeneration": 1,
    "lastTransitionTime": "2020-01-01T00:00:00Z",
}


def written(made, *objects):
    """The objects with the status that they are to get."""
    told = {(each.kind, each.item.metadata.name): each.after for each in made.statuses}
    return [
        {**each, "status": told.get((each["kind"], each["metadata"]["name"]), each.get("status"))}
        for each in objects
    ]


def test_what_has_been_told_is_not_told_again():
    first = planned(gateway(), service())
    objects = [gateway_class(), gateway(), route(backend()), service(), own(first, "203.0.113.5")]
    made = planned(*objects)
    assert {each.kind for each in made.statuses} == {"GatewayClass", "Gateway", "TCPRoute"}
    again = [
        {**each} if each["kind"] == "Service" else one
        for each, one in zip(objects, written(made, *objects), strict=True)
    ]
    assert not plan(found(*again), RANGES, LATER).statuses


def test_a_condition_keeps_its_time_until_its_status_changes():
    made = planned(gateway())
    (known,) = written(made, gateway())
    known["metadata"]["generation"] = 2
    later = plan(found(known, own(made, "203.0.113.5")), RANGES, LATER)
    conditions = {each["type"]: each for each in status(later)["conditions"]}
    assert conditions["Accepted"]["lastTransitionTime"] == NOW
    assert conditions["Programmed"]["lastTransitionTime"] == LATER
    assert {each["observedGeneration"] for each in conditions.values()} == {2}
    listener = {each["type"]: each for each in status(later)["listeners"][0]["conditions"]}
    assert listener["Accepted"]["lastTransitionTime"] == NOW
    assert listener["Programmed"]["lastTransitionTime"] == LATER


def test_conditions_of_others_stay():
    for made, kind, name in (
        (planned({**gateway(), "status": {"conditions": [OF_OTHERS]}}), "Gateway", "gw"),
        (
            planned({**gateway_class(), "status": {"conditions": [OF_OTHERS]}}),
            "GatewayClass",
            "ebpflb",
        ),
    ):
        conditions = status(made, kind, name)["conditions"]
        assert OF_OTHERS in conditions
        assert "Accepted" in [each["type"] for each in conditions]


def test_a_class_tells_its_features():
    made = planned()
    assert [
        each["name"] for each in status(made, "GatewayClass", "ebpflb")["supportedFeatures"]
    ] == list(FEATURES)


def test_parents_of_others_stay_and_old_ones_of_ours_go():
    theirs = {"controllerName": "example.com/other", "parentRef": {"name": "x"}, "more": 1}
    reference = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    ours = {"controllerName": CONTROLLER, "parentRef": {"name": "old"}}
    known = {
        "controllerName": CONTROLLER,
        "parentRef": reference,
        "conditions": [OF_OTHERS],
    }
    made = planned(gateway(), {**route(), "status": {"parents": [ours, theirs, known]}})
    first, second = status(made, "TCPRoute", "route")["parents"]
    assert first == theirs
    assert second["parentRef"] == reference
    assert OF_OTHERS in second["conditions"]
    detached = {**route(), "status": {"parents": [ours, theirs]}}
    detached["spec"] = {"parentRefs": [{"name": "elsewhere"}]}
    assert status(planned(gateway(), detached), "TCPRoute", "route")["parents"] == [theirs]


def test_a_parent_whose_conditions_are_missing_gets_some():
    reference = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    known = {"controllerName": CONTROLLER, "parentRef": reference}
    made = planned(gateway(), {**route(), "status": {"parents": [known]}})
    (one,) = status(made, "TCPRoute", "route")["parents"]
    assert {each["type"] for each in one["conditions"]} == {"Accepted", "ResolvedRefs"}


def test_conditions_that_cannot_be_read_are_told_anew():
    reference = {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "gw"}
    broken = [
        {"controllerName": CONTROLLER},
        {"controllerName": CONTROLLER, "parentRef": reference, "conditions": [{"type": 5}]},
    ]
    made = planned(gateway(), {**route(), "status": {"parents": broken}})
    (one,) = status(made, "TCPRoute", "route")["parents"]
    assert {each["lastTransitionTime"] for each in one["conditions"]} == {NOW}


def test_a_long_message_is_cut():
    wrong = [backend("a" * 60 + str(number), kind="Pod") for number in range(16)]
    made = planned(gateway(), route(*wrong))
    (one,) = status(made, "TCPRoute", "route")["parents"]
    assert max(len(each["message"]) for each in one["conditions"]) == 1024
