# SPDX-License-Identifier: Apache-2.0
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.config.label_selector import parse_label_selector
from ebpflb.model.address import (
    WILDCARD,
    Family,
    Protocol,
    SocketAddress,
    format_address,
    parse_address,
)
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import Ejections, EjectionState, FailureCount
from ebpflb.model.explain import (
    Wanted,
    differences,
    judge,
    planned_verdict,
    wanted,
)
from ebpflb.model.plan import (
    HEALTH_CHECK,
    Backend,
    Choice,
    FrontendKey,
    FrontendType,
    IfEmpty,
)
from ebpflb.model.selection import Selection
from ebpflb.model.service import ServiceName, TrafficPolicy
from ebpflb.model.source_ranges import parse_prefix
from tests.bpf.harness.worlds import make_changes
from tests.builders import (
    NODE,
    endpoint,
    endpoint_slice,
    node,
    port_endpoint,
    port_name,
    service,
    service_port,
    terminating,
)
from tests.unit.dataplane.desired import frontend

CLUSTER, LOCAL = TrafficPolicy.CLUSTER, TrafficPolicy.LOCAL
WEB = ServiceName("default", "web")
OTHER = "node-b"


def whys(*endpoints, policy=CLUSTER, zone="", **fields):
    """What is said of each endpoint; a plus in front of a candidate."""
    found = judge(
        service_port(internal_policy=policy, **fields),
        [port_endpoint(each) for each in endpoints],
        node(zone=zone),
        policy,
    )
    return [f"{'+' * each.is_candidate}{each.why}" for each in found]


def pair(**second):
    return endpoint("10.1.0.1"), endpoint("10.1.0.2", **second)


@pytest.mark.parametrize(
    ("second", "why"),
    [
        ({"ready": False}, "not ready"),
        (
            {"ready": False, "terminating": True},
            "terminating, while others are ready",
        ),
        (
            {"ready": False, "serving": False, "terminating": True},
            "terminating, no longer serving",
        ),
        ({"node": OTHER}, "+ready"),
    ],
)
def test_an_endpoint_that_others_are_preferred_to(second, why):
    assert whys(*pair(**second)) == ["+ready", why]


def test_one_that_terminates_is_the_last_resort():
    assert whys(endpoint(ready=False), terminating("10.1.0.2")) == [
        "not ready",
        "+terminating but still serving, and none is ready",
    ]


def test_one_elsewhere_is_no_candidate_under_local():
    assert whys(*pair(node=OTHER), endpoint("10.1.0.3", None), policy=LOCAL) == [
        "+ready, on this node",
        f"on node {OTHER}, and the policy is Local",
        "on no node, and the policy is Local",
    ]


def test_local_judges_the_last_resort_by_this_node_alone():
    assert whys(terminating("10.1.0.1"), endpoint("10.1.0.2", OTHER), policy=LOCAL) == [
        "+terminating but still serving, and none is ready on this node",
        f"on node {OTHER}, and the policy is Local",
    ]


def test_one_of_another_zone_or_node_by_hints():
    hinted = endpoint("10.1.0.1", zone_hints=("a",)), endpoint("10.1.0.2", zone_hints=("b", "c"))
    assert whys(*hinted, zone="a") == [
        "+ready, its hints name this zone, a",
        "its hints name zone b, c, not this zone, a",
    ]
    hinted = endpoint("10.1.0.1", node_hints=(NODE,)), endpoint("10.1.0.2", node_hints=(OTHER,))
    assert whys(*hinted) == [
        f"+ready, its hints name this node, {NODE}",
        f"its hints name node {OTHER}, not this node, {NODE}",
    ]


@pytest.mark.parametrize(
    ("hints", "zone", "why"),
    [
        (("a",), "", f"node {NODE} has no zone label"),
        (("a",), "x", "none name this zone, x"),
        ((), "a", "some endpoints have none"),
    ],
)
def test_hints_that_do_not_count_are_reported_with_the_reason(hints, zone, why):
    pair_of = endpoint("10.1.0.1", zone_hints=hints), endpoint("10.1.0.2", zone_hints=("a",))
    first, second = whys(*pair_of, zone=zone)
    told = f"+ready; its hints for zone a are ignored: {why}"
    assert (first, second) == (told if hints else "+ready", told)


def test_a_policy_that_no_frontend_follows_has_no_candidates():
    (found,) = judge(service_port(), [port_endpoint(endpoint())], node(), LOCAL)
    assert found[1:] == (False, "no frontend of this port uses the policy Local")


@given(st.integers(0, 1 << 32))
def test_candidates_are_what_the_plan_has(seed):
    changes = make_changes(Random(seed))
    for name in changes.names():
        for planned in changes.plan(name):
            for is_outside, choice in ((False, planned.local), (True, planned.others)):
                found = wanted(changes, [planned.key], name, CLIENT, is_outside=is_outside)
                # A health check leads to the node, not to an endpoint.
                is_check = planned.service.port == HEALTH_CHECK
                assert candidates(found) == {
                    (format_address(each.address), each.port)
                    for each in choice.backends
                    if not is_check
                }


def candidates(found: Wanted) -> set[tuple[str, int]]:
    return {(each["address"], each["port"]) for each in found.endpoints if each["candidate"]}


def known(*items):
    changes = Changes(NODE)
    for item in items:
        changes.set(item)
    return changes


HERE = Backend(parse_address("10.1.0.5"), 8080, local=True, terminating=False)
THERE = HERE._replace(address=parse_address("10.1.0.6"), local=False)
THERE_BY_NAME = THERE._replace(node=OTHER)
BOTH, HERE_ALONE = Choice((HERE, THERE), IfEmpty.REFUSE), Choice((HERE,), IfEmpty.REFUSE)
NO_BACKEND, DROP = Choice((), IfEmpty.REFUSE), Choice((), IfEmpty.DROP)
SOURCES = (parse_prefix("192.0.2.0/24"),)
CLIENT, OTHER_CLIENT = parse_address("192.0.2.9"), parse_address("198.51.100.9")
PLANNED = frontend(
    type=FrontendType.NODE_PORT,
    service=port_name("http"),
    local=BOTH,
    others=HERE_ALONE,
    external_policy=LOCAL,
)


@pytest.mark.parametrize(
    ("fields", "difference"),
    [
        ({"affinity_timeout": 60}, "affinity timeout: kernel 0, model 60"),
        ({"allowed_sources": SOURCES}, "source ranges: kernel none, model 192.0.2.0/24"),
        (
            {"service": port_name("http", service="api")},
            "Service: kernel default/web, model default/api",
        ),
        ({"service": port_name("https")}, "port name: kernel http, model https"),
        ({"masquerade": True}, "masquerade: kernel False, model True"),
        ({"dsr": True}, "direct server return: kernel False, model True"),
        ({"retry": True}, "retry: kernel False, model True"),
        (
            {"others": NO_BACKEND},
            "clients elsewhere: backend 10.1.0.5 port 8080 of this node in the kernel alone",
        ),
        (
            {"others": BOTH},
            "clients elsewhere: backend 10.1.0.6 port 8080 in the model alone",
        ),
        (
            {
                "others": BOTH._replace(
                    backends=(HERE, THERE._replace(ejection=EjectionState.TRIAL))
                )
            },
            "clients elsewhere: backend 10.1.0.6 port 8080, on trial in the model alone",
        ),
        (
            {"others": HERE_ALONE._replace(if_empty=IfEmpty.DROP)},
            "clients elsewhere: without a backend kernel refuse, model drop",
        ),
    ],
)
def test_each_difference_of_kernel_and_model_has_a_line(fields, difference):
    assert differences(PLANNED, replace(PLANNED, **fields)) == [difference]


def test_a_frontend_that_only_one_of_them_has_is_a_difference():
    assert differences(None, None) == differences(PLANNED, PLANNED) == []
    lacks = "the kernel has this frontend, the model has not"
    assert differences(PLANNED, None) == [lacks]


def test_the_kernel_knows_no_nodes_of_backends():
    wanted_there = replace(PLANNED, others=BOTH._replace(backends=(HERE, THERE_BY_NAME)))
    assert differences(replace(PLANNED, others=BOTH), wanted_there) == []


def test_what_the_model_wants_for_a_client():
    some = replace(PLANNED, allowed_sources=SOURCES)
    assert planned_verdict(some, BOTH, CLIENT) == "translated"
    assert planned_verdict(some, BOTH, OTHER_CLIENT) == "dropped"
    assert planned_verdict(some, DROP, CLIENT) == "dropped"
    assert planned_verdict(PLANNED, NO_BACKEND, CLIENT) == "refused"


def test_endpoints_that_are_ejected_or_on_trial_say_so():
    changes = Changes(NODE, ejections=Ejections(2))
    endpoints = [endpoint(f"10.1.0.{number}") for number in range(1, 5)]
    for each in (service(), endpoint_slice("web-1", *endpoints), node()):
        changes.set(each)
    one, two = (SocketAddress(each.address, 8080) for each in endpoints[:2])
    changes.observe_failures({port_name(): {one: FailureCount(2)}}, 0.0)
    changes.observe_failures({port_name(): {two: FailureCount(2)}}, 10.0)
    (planned,) = changes.plan(WEB)
    whys = wanted(changes, [planned.key], WEB, CLIENT, is_outside=False).endpoints
    assert [each["candidate"] for each in whys] == [True, False, True, True]
    assert whys[0]["why"].startswith("ready, but on trial: ")
    assert whys[1]["why"].startswith("ready, but ejected: ")
    assert whys[2]["why"] == "ready"
    ejection_states = [each.ejection.word for each in planned.local.backends]
    assert ejection_states == ["trial", "watched", "watched"]


NODE_PORT = FrontendKey(WILDCARD[Family.IPV4], 30080, Protocol.TCP)


def wants(changes, *keys, owner=None, is_outside=False):
    return wanted(changes, keys, owner, CLIENT, is_outside=is_outside)


@pytest.fixture
def both_ends():
    """A Service with a NodePort, and an endpoint on each of two nodes."""
    port = service_port(node_port=30080, external_policy=LOCAL)
    endpoints = endpoint("10.1.0.1"), endpoint("10.1.0.2", OTHER)
    return known(service("web", port), service("api"), endpoint_slice("web-1", *endpoints))


@pytest.mark.parametrize(
    ("is_outside", "candidates", "why"),
    [(False, [True, True], "ready"), (True, [True, False], f"on node {OTHER}, and the policy is")],
)
def test_what_is_wanted_depends_on_where_the_client_is(both_ends, is_outside, candidates, why):
    found = wants(both_ends, NODE_PORT, is_outside=is_outside)
    assert found.frontend in both_ends.plan(WEB)
    assert (found.frontend.key, found.verdict, found.left_out) == (NODE_PORT, "translated", "")
    assert [each["candidate"] for each in found.endpoints] == candidates
    assert found.endpoints[1]["why"].startswith(why)


def test_the_first_of_the_frontends_that_there_is_counts(both_ends):
    unknown = NODE_PORT._replace(port=30081)
    assert wants(both_ends, unknown, NODE_PORT) == wants(both_ends, NODE_PORT)
    assert wants(both_ends, unknown) == wants(both_ends) == Wanted()


def test_the_service_in_the_kernel_has_lost_its_frontend(both_ends):
    assert wants(both_ends, NODE_PORT, owner=ServiceName("default", "api")) == Wanted()
    assert wants(both_ends, NODE_PORT, owner=ServiceName("default", "gone")) == Wanted()


def test_nothing_is_wanted_of_a_service_that_another_proxy_serves(both_ends):
    both_ends.selection = Selection(parse_label_selector("canary=yes"))
    both_ends.set(service("web", service_port(node_port=30080)))
    left_out = "default/web is left to kube-proxy: not selected by --service-selector 'canary=yes'"
    assert wants(both_ends, NODE_PORT) == Wanted(left_out=left_out)


def _changes_of(*items):
    changes = Changes(NODE)
    for each in items:
        changes.set(each)
    return changes
