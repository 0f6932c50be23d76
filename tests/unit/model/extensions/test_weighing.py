# SPDX-License-Identifier: Apache-2.0
"""What weights make of the endpoints of a Service: in its plan, in its problems, and in explain."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from ebpflb.model.address import Protocol, SocketAddress, format_address
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import FailureCount, PortWatch
from ebpflb.model.endpoint import Endpoint, SlicePort
from ebpflb.model.explain import differences, encode_frontend, wanted
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.weighing import Weighing
from ebpflb.model.extensions.weights import Share, Weights
from ebpflb.model.plan import Choice, Defaults, Frontend, plan_service
from ebpflb.model.service import ServiceName, ServicePort, TrafficPolicy
from ebpflb.words.scheduler import TABLE_SIZE, Scheduler
from tests.builders import (
    NODE,
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
)

WEB = ServiceName("default", "web")
PODS = Weights()


def shares(**weights: int) -> Weights:
    """By the label `version`."""
    return Weights(tuple(Share("version", value, weight) for value, weight in weights.items()))


CANARY = shares(v1=90, v2=10)


def pod(number: int, where: str | None = NODE, **fields: Any) -> Endpoint:
    return endpoint(f"10.1.0.{number}", where, pod=f"default/pod-{number}", **fields)


def labelled(*versions: str) -> dict[str, PodLabels]:
    """By the names of pods 1, 2, ..."""
    return {
        f"pod-{number}": PodLabels("default", f"pod-{number}", (("version", version),))
        for number, version in enumerate(versions, start=1)
    }


def weighing(weights: Weights | None, known: Mapping[str, PodLabels]) -> Weighing:
    return Weighing(weights, lambda namespace, name: known.get(name) if namespace else None)


def planned(
    weights: Weights,
    known: Mapping[str, PodLabels],
    *endpoints: Endpoint,
    port: ServicePort | None = None,
    defaults: Defaults | None = None,
) -> Frontend:
    """The ClusterIP."""
    own = service("web", port or service_port(), weights=weights)
    piece = endpoint_slice("web-1", *endpoints)
    found = plan_service(
        own,
        [piece, replace(piece, name="web-udp", ports=(SlicePort("", Protocol.UDP, 8080),))],
        node(),
        defaults or Defaults(),
        weighing=weighing(weights, known),
    )
    return found[0]


def weights_of(choice: Choice) -> dict[str, int]:
    """By the last number of the address."""
    return {format_address(each.address)[-1]: each.weight for each in choice.backends}


def test_a_share_is_divided_among_the_endpoints_of_its_group():
    known = labelled("v1", "v1", "v1", "v2")
    found = planned(CANARY, known, *map(pod, range(1, 5)))
    assert weights_of(found.local) == {"1": 3, "2": 3, "3": 3, "4": 1}
    assert found.local.shares == (0.3, 0.3, 0.3, 0.1)
    assert found.local.table_slots(0) == 10


def test_the_first_share_that_matches_counts():
    weights = Weights((Share("version", "v1", 3), Share("zone", "a", 1)))
    known = {"pod-1": PodLabels("default", "pod-1", (("version", "v1"), ("zone", "a")))}
    known["pod-2"] = PodLabels("default", "pod-2", (("zone", "a"),))
    assert weights_of(planned(weights, known, pod(1), pod(2)).local) == {"1": 3, "2": 1}


class _Shares(tuple[Share, ...]):
    """times: how often somebody looked through all of them."""

    times = 0

    def __iter__(self) -> Iterator[Share]:
        self.times += 1
        return super().__iter__()


def test_an_annotation_with_thousands_of_shares_is_looked_through_once():
    many = (Share("version", f"v{number}", number) for number in (3, 1, 2, *range(1, 5000)))
    all_of_them = _Shares([*many, Share("version", "v3", 9)])
    found = planned(Weights(all_of_them), labelled("v1", "v3", "none"), *map(pod, range(1, 4)))
    assert weights_of(found.local) == {"1": 1, "2": 3}
    assert all_of_them.times == 1


def test_each_choice_divides_it_among_its_own():
    """On this node are one pod of each version, elsewhere seven more of the first."""
    known = labelled("v1", "v2", *["v1"] * 8)
    pods = [pod(1), pod(2), *(pod(number, OTHER_NODE) for number in range(3, 10))]
    port = service_port(node_port=30000, external_policy=TrafficPolicy.LOCAL)
    own = service("web", port, weights=CANARY)
    _, outside = plan_service(
        own, [endpoint_slice("web-1", *pods)], node(), weighing=weighing(CANARY, known)
    )
    assert weights_of(outside.others) == {"1": 9, "2": 1}
    assert weights_of(outside.local) == {"2": 8, **dict.fromkeys("13456789", 9)}
    assert outside.local.shares[1] == 0.1


@pytest.mark.parametrize("weights", [shares(v1=100, v2=0), shares(v1=100)])
def test_without_a_share_there_are_no_new_connections_and_flows_stay(weights: Weights):
    known = labelled("v1", "v2")
    port = service_port(name=port_name(protocol=Protocol.UDP))
    found = planned(weights, known, pod(1), pod(2), port=port)
    assert weights_of(found.local) == {"1": 1}
    assert [format_address(each.address) for each in found.serving] == ["10.1.0.2"]
    assert not planned(weights, known, pod(1), pod(2)).serving


def test_an_endpoint_that_is_no_longer_serving_keeps_nothing():
    port = service_port(name=port_name(protocol=Protocol.UDP))
    gone = pod(2, serving=False)
    assert not planned(shares(v1=1), labelled("v1", "v2"), pod(1), gone, port=port).serving


def test_ejected_endpoints_leave_their_share_to_their_group():
    own = service("web", service_port(), weights=CANARY)
    watch = PortWatch(is_on=True, ejected=(SocketAddress(address("10.1.0.1"), 8080),))
    (found,) = plan_service(
        own,
        [endpoint_slice("web-1", pod(1), pod(2), pod(3))],
        node(),
        watch=lambda _: watch,
        weighing=weighing(CANARY, labelled("v1", "v1", "v2")),
    )
    assert weights_of(found.local) == {"2": 9, "3": 1}


def test_one_with_weight_0_gets_nothing_because_others_fail():
    drained = shares(v1=100, v2=0)
    watch = PortWatch(is_on=True, ejected=(SocketAddress(address("10.1.0.1"), 8080),))
    (found,) = plan_service(
        service("web", weights=drained),
        [endpoint_slice("web-1", pod(1), pod(2))],
        node(),
        watch=lambda _: watch,
        weighing=weighing(drained, labelled("v1", "v2")),
    )
    assert (weights_of(found.local), found.ejected) == ({"1": 1}, ())


def test_each_pod_may_have_a_weight_of_its_own():
    known = {"pod-1": PodLabels("default", "pod-1", weight=4), "pod-2": PodLabels("default", "x")}
    found = planned(PODS, known, pod(1), pod(2), pod(3), endpoint("10.1.0.4"))
    assert weights_of(found.local) == {"1": 4, "2": 1, "3": 1, "4": 1}


def test_slices_have_weights_where_the_service_has_none():
    heavy = endpoint_slice("web-1", pod(1), pod(2), weight=50)
    light, drained = (endpoint_slice(f"web-{n}", pod(n), weight=w) for n, w in ((3, 25), (4, 0)))
    usual = endpoint_slice("web-5", pod(5))
    (found,) = plan_service(service(), [heavy, light, drained, usual], node())
    assert weights_of(found.local) == {"1": 2, "2": 2, "3": 1, "5": 4}
    own = service("web", weights=PODS)
    (found,) = plan_service(own, [heavy, light], node(), weighing=weighing(PODS, {}))
    assert not found.local.weights


def test_even_weights_plan_what_no_weights_do():
    pods = [pod(1), pod(2)]
    plain = plan_service(service(), [endpoint_slice("web-1", *pods)], node())
    even = endpoint_slice("web-1", *pods, weight=7)
    assert plan_service(service(), [even], node()) == plain
    assert planned(shares(v1=50, v2=50), labelled("v1", "v2"), *pods) == plain[0]


def test_a_hash_has_slots_of_its_table_by_weight():
    defaults = Defaults(scheduler=Scheduler.MAGLEV)
    found = planned(CANARY, labelled("v1", "v2"), pod(1), pod(2), defaults=defaults)
    assert weights_of(found.local) == {"1": 9006, "2": 1001}
    assert found.local.table_slots(found.table_size) == TABLE_SIZE


@pytest.mark.parametrize("weights", [shares(v3=5), shares(v1=0, v2=0)])
def test_weights_that_leave_nothing_have_no_effect(weights: Weights):
    judge = weighing(weights, labelled("v1", "v2"))
    pieces = [endpoint_slice("web-1", pod(1), pod(2))]
    (found,) = plan_service(service("web", weights=weights), pieces, node(), weighing=judge)
    assert found == plan_service(service(), pieces, node())[0]
    assert judge.is_in_vain
    nothing = weighing(weights, {})
    plan_service(service("web", weights=weights), [], node(), weighing=nothing)
    assert not nothing.is_in_vain


class Labelled(Changes):
    """With pods whose labels are known."""

    known: Mapping[str, PodLabels] = {}

    def pod_labels(self, namespace: str, name: str) -> PodLabels | None:
        return self.known.get(name)


@pytest.fixture
def changes() -> Labelled:
    made = Labelled(NODE)
    made.set(service("web", weights=CANARY))
    made.set(endpoint_slice("web-1", pod(1), pod(2)))
    made.take()
    return made


def test_a_problem_says_so_while_it_lasts(changes: Labelled):
    changes.plan(WEB)
    ((name, event, text),) = changes.problems()
    assert (name, event) == (WEB, "InvalidAnnotation")
    assert text.startswith("the weights have no effect: no endpoint")
    changes.known = labelled("v1", "v2")
    changes.plan(WEB)
    assert not changes.problems()
    changes.known = {}
    changes.plan(WEB)
    changes.set(service("web"))
    assert not changes.problems()


def test_explain_names_endpoints_without_weight_and_the_shares_of_the_others(changes: Labelled):
    changes.known = labelled("v1", "v2")
    changes.set(service("web", weights=shares(v1=1)))
    (frontend,) = changes.plan(WEB)
    found = wanted(changes, [frontend.key], None, address("10.1.0.9"), is_outside=False)
    assert {each["address"][-1]: (each["candidate"], each["why"]) for each in found.endpoints} == {
        "1": (True, "ready"),
        "2": (False, "ready, but its weight is 0"),
    }
    changes.set(service("web", weights=CANARY))
    (frontend,) = changes.plan(WEB)
    encoded = encode_frontend(frontend)["this_node"]["backends"]
    assert [each["share"] for each in encoded] == [0.9, 0.1]
    even = changes.plan(WEB)[0]
    changes.known = labelled("v1", "v1")
    other = differences(even, changes.plan(WEB)[0])
    assert "clients of this node: backend 10.1.0.1 port 8080 of this node, weight 9" in other[0]


def test_only_those_with_a_weight_count_for_how_many_may_be_ejected(changes: Labelled):
    changes.known = labelled("v1", "v2")
    failing = {port_name(): {SocketAddress(address("10.1.0.1"), 8080): FailureCount(3)}}
    changes.set(service("web", weights=shares(v1=100, v2=0), ejection=3))
    assert not changes.observe_failures(failing, 1.0)
    changes.set(service("web", weights=CANARY, ejection=3))
    assert changes.observe_failures(failing, 2.0)


def test_a_service_without_room_for_tables_has_no_weights():
    many = replace(
        service("web", weights=CANARY),
        ports=tuple(
            replace(service_port(), port=number, annotated=service(weights=CANARY).annotated)
            for number in range(1, 1100)
        ),
    )
    changes = Labelled(NODE)
    changes.known = labelled("v1", "v2")
    changes.set(many)
    changes.set(endpoint_slice("web-1", pod(1), pod(2)))
    changes.take()
    assert not any(each.local.weights for each in changes.plan(WEB))
    (problem,) = changes.problems()
    assert problem.text.startswith("scheduler random without weights instead: ")
