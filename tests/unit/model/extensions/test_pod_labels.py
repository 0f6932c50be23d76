# SPDX-License-Identifier: Apache-2.0
"""Which Services the labels and weights of pods matter to."""

from dataclasses import replace

import pytest

from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.weights import Share, Weights
from ebpflb.model.objects.kinds import Kind, ObjectKey, key_of
from ebpflb.model.plan import Defaults
from ebpflb.model.service import Service, ServiceName
from ebpflb.words.annotations import WEIGHTS
from tests.builders import NODE, endpoint, endpoint_slice, service, service_port

OWN = Weights()
SHARES = Weights((Share("version", "v2", 10), Share("version", "v1", 90)))
POD = PodLabels("default", "web-1", (("app", "web"), ("version", "v1")), 3)
WEB = ServiceName("default", "web")


def weighted(
    name: str = "web", weights: Weights | None = OWN, namespace: str = "default"
) -> Service:
    return replace(service(name, weights=weights), name=ServiceName(namespace, name))


def naming(
    *pods: str, service: str = "web", namespace: str = "default", number: int = 1
) -> EndpointSlice:
    endpoints = [endpoint(f"10.1.0.{index}", pod=pod) for index, pod in enumerate(pods, 1)]
    name = f"{service}-{number}"
    return endpoint_slice(name, *endpoints, service=service, namespace=namespace)


@pytest.fixture
def changes() -> Changes:
    """A weighted Service with a pod whose labels are known."""
    made = Changes(NODE)
    for each in (weighted(), naming("default/web-1"), POD):
        made.set(each)
    made.take()
    return made


def test_labels_of_a_pod_are_known_until_it_is_gone(changes: Changes):
    assert changes.pod_labels("default", "web-1") == POD
    assert changes.pod_labels("other", "web-1") is None
    changes.remove(key_of(POD))
    assert changes.pod_labels("default", "web-1") is None
    assert changes.take() == {WEB}


@pytest.mark.parametrize(
    "changed",
    [
        PodLabels("default", "web-1", (("app", "web"), ("version", "v2")), 3),
        PodLabels("default", "web-1", POD.labels, 4),
        PodLabels("default", "web-1", POD.labels),
    ],
)
def test_a_service_with_weights_is_planned_again_when_its_pod_changes(
    changes: Changes, changed: PodLabels
):
    changes.set(changed)
    assert changes.take() == {WEB}
    assert changes.take() == set()


def test_only_the_services_of_the_pods_namespace_that_name_it_are_planned_again(changes: Changes):
    others = [
        (weighted("even", None), naming("default/web-1", service="even")),
        (weighted("shares", SHARES), naming("", "default/web-1", service="shares")),
        (weighted("elsewhere"), naming("default/web-11", "other/web-1", service="elsewhere")),
        (weighted("web", namespace="other"), naming("default/web-1", namespace="other")),
        (weighted("empty"), naming(service="empty")),
    ]
    for each, piece in others:
        changes.set(each)
        changes.set(piece)
    # Of no Service.
    changes.set(naming("default/web-1", service="nobody"))
    changes.take()
    changes.set(PodLabels("default", "web-1"))
    assert changes.take() == {WEB, ServiceName("default", "shares")}


def test_a_pod_of_a_backup_matters_to_the_service_that_may_have_its_endpoints(changes: Changes):
    changes.set(service("web", weights=OWN, backup="spare"))
    changes.set(service("spare", service_port("10.96.0.20")))
    changes.set(naming("default/spare-1", service="spare"))
    changes.take()
    changes.set(PodLabels("default", "spare-1", weight=7))
    assert WEB in changes.take()


def test_a_pod_in_a_second_slice_counts(changes: Changes):
    changes.set(naming("default/web-2", number=2))
    changes.take()
    changes.set(PodLabels("default", "web-2"))
    assert changes.take() == {WEB}


def test_changes_that_cancel_each_other_out_do_not_count(changes: Changes):
    changes.set(PodLabels("default", "web-1"))
    changes.set(POD)
    changes.remove(ObjectKey(Kind.POD_LABELS, "default", "unknown"))
    assert changes.take() == set()


def test_labels_are_limited_to_some_keys():
    assert POD.limited_to({"version", "other"}).labels == (("version", "v1"),)
    assert POD.limited_to(()) == PodLabels("default", "web-1", weight=3)


def told(changes: Changes) -> list[tuple[str, str]]:
    changes.take()
    return [(each.service.name, each.text) for each in changes.problems()]


def test_a_wrong_weight_of_a_pod_is_a_problem_of_the_services_that_it_matters_to(changes: Changes):
    changes.set(weighted("shares", SHARES))
    changes.set(naming("default/web-1", service="shares"))
    changes.set(PodLabels("default", "web-1", problem="no number"))
    assert told(changes) == [("web", "Pod default/web-1: no number; it is ignored")]
    changes.set(naming("default/web-1", "default/web-0", "default/web-2"))
    changes.set(PodLabels("default", "web-0", problem="too much"))
    changes.set(PodLabels("default", "web-2", problem="too much"))
    line = "Pod default/web-0: too much; it is ignored (and 2 more pods)"
    assert told(changes) == [("web", line)]
    changes.set(POD)
    changes.remove(ObjectKey(Kind.POD_LABELS, "default", "web-0"))
    assert told(changes) == [("web", "Pod default/web-2: too much; it is ignored")]
    changes.remove(ObjectKey(Kind.SERVICE, *WEB))
    assert told(changes) == []


def test_other_problems_of_the_service_are_told_as_well(changes: Changes):
    changes.set(service("web", weights=OWN, problems=("else",)))
    changes.set(PodLabels("default", "web-1", problem="no number"))
    assert [text for _, text in told(changes)] == [
        "else",
        "Pod default/web-1: no number; it is ignored",
    ]


@pytest.mark.parametrize("weights", [OWN, SHARES])
def test_weights_without_labels_of_pods_have_no_effect(weights: Weights):
    line = f"the annotation {WEIGHTS} has no effect: the option watch-pods is off on this node"
    for is_known in (False, True):
        changes = Changes(NODE, defaults=Defaults(pod_labels=is_known))
        changes.set(weighted(weights=weights))
        assert told(changes) == ([] if is_known else [("web", line)])
