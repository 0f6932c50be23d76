# SPDX-License-Identifier: Apache-2.0
"""categorize(), case by case. Endpoints are named by letters, the node is node-a in zone-1."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.endpoint import Endpoint, PortEndpoint
from ebpflb.model.node import Node
from ebpflb.model.service import ServicePort, TrafficPolicy
from ebpflb.model.traffic_policy import EndpointSets, categorize
from tests.builders import OTHER_NODE, endpoint, node, port_endpoint, service_port, terminating

IN_ZONE_1 = node(zone="zone-1")
NO_ZONE = node()

PLAIN = service_port()
NODE_PORT = service_port(node_port=30080)
INTERNAL_LOCAL = service_port(internal_policy=TrafficPolicy.LOCAL)
EXTERNAL_LOCAL = service_port(external_policy=TrafficPolicy.LOCAL, node_port=30080)
BOTH_LOCAL = service_port(
    internal_policy=TrafficPolicy.LOCAL, external_policy=TrafficPolicy.LOCAL, node_port=30080
)
INTERNAL_LOCAL_EXPOSED = service_port(internal_policy=TrafficPolicy.LOCAL, node_port=30080)
EXTERNAL_LOCAL_UNEXPOSED = service_port(external_policy=TrafficPolicy.LOCAL)

ADDRESSES = {letter: f"10.1.0.{number}" for number, letter in enumerate("abcdef", 1)}


def ready(letter: str, where: str | None = OTHER_NODE, **fields: Any) -> Endpoint:
    return endpoint(ADDRESSES[letter], where, **fields)


def unready(letter: str, where: str | None = OTHER_NODE, **fields: Any) -> Endpoint:
    return endpoint(ADDRESSES[letter], where, ready=False, **fields)


def ending(letter: str, where: str | None = OTHER_NODE, **fields: Any) -> Endpoint:
    return terminating(ADDRESSES[letter], where, **fields)


def dead(letter: str, where: str | None = OTHER_NODE) -> Endpoint:
    return ending(letter, where, serving=False)


def zones(*names: str) -> dict[str, Any]:
    return {"zone_hints": names}


def nodes(*names: str) -> dict[str, Any]:
    return {"node_hints": names}


class Case(NamedTuple):
    sentence: str
    port: ServicePort
    endpoints: tuple[Endpoint, ...]
    cluster: str
    local: str = ""
    has_any: bool = True
    node: Node = IN_ZONE_1


HERE = "node-a"

HINTS = [
    Case(
        "without hints all ready endpoints are used",
        PLAIN,
        (ready("a"), ready("b", HERE), ready("c", None)),
        "abc",
    ),
    Case(
        "zone hints keep traffic in the zone",
        PLAIN,
        (ready("a", **zones("zone-1")), ready("b", **zones("zone-2"))),
        "a",
    ),
    Case(
        "an endpoint may be hinted for several zones",
        PLAIN,
        (ready("a", **zones("zone-2", "zone-1")), ready("b", **zones("zone-2"))),
        "a",
    ),
    Case(
        "one ready endpoint without a zone hint switches zone hints off",
        PLAIN,
        (ready("a", **zones("zone-1")), ready("b")),
        "ab",
    ),
    Case(
        "no endpoint hinted for our zone switches zone hints off",
        PLAIN,
        (ready("a", **zones("zone-2")), ready("b", **zones("zone-3"))),
        "ab",
    ),
    Case(
        "a node without a zone does not heed zone hints",
        PLAIN,
        (ready("a", **zones("zone-1")), ready("b", **zones("zone-2"))),
        "ab",
        node=NO_ZONE,
    ),
    Case(
        "a node without a zone does not take an empty zone hint for its own",
        PLAIN,
        (ready("a", **zones("")), ready("b", **zones("zone-2"))),
        "ab",
        node=NO_ZONE,
    ),
    Case(
        "an unready endpoint without a hint does not switch hints off",
        PLAIN,
        (ready("a", **zones("zone-1")), ready("b", **zones("zone-2")), unready("c")),
        "a",
    ),
    Case(
        "a terminating endpoint without a hint does not switch hints off",
        PLAIN,
        (ready("a", **zones("zone-1")), ready("b", **zones("zone-2")), ending("c", HERE)),
        "a",
    ),
    Case(
        "hints for our zone on unready endpoints alone do not count",
        PLAIN,
        (unready("a", **zones("zone-1")), ready("b", **zones("zone-2"))),
        "b",
    ),
    Case(
        "node hints keep traffic on the node",
        PLAIN,
        (ready("a", HERE, **nodes("node-a")), ready("b", **nodes("node-b"))),
        "a",
    ),
    Case(
        "node hints may name this node for an endpoint elsewhere",
        PLAIN,
        (ready("a", OTHER_NODE, **nodes("node-a")), ready("b", HERE, **nodes("node-b"))),
        "a",
    ),
    Case(
        "node hints come before zone hints",
        PLAIN,
        (
            ready("a", **nodes("node-a"), **zones("zone-2")),
            ready("b", **nodes("node-b"), **zones("zone-1")),
        ),
        "a",
    ),
    Case(
        "node hints that do not name this node leave it to the zone hints",
        PLAIN,
        (
            ready("a", **nodes("node-b"), **zones("zone-1")),
            ready("b", **nodes("node-c"), **zones("zone-2")),
        ),
        "a",
    ),
    Case(
        "one ready endpoint without a node hint leaves it to the zone hints",
        PLAIN,
        (
            ready("a", HERE, **nodes("node-a"), **zones("zone-1")),
            ready("b", **zones("zone-1")),
            ready("c", **zones("zone-2")),
        ),
        "ab",
    ),
    Case(
        "node hints alone that do not name this node lead to the whole cluster",
        PLAIN,
        (ready("a", **nodes("node-b")), ready("b", **nodes("node-c"))),
        "ab",
    ),
    Case(
        "node hints work in no zone",
        PLAIN,
        (ready("a", HERE, **nodes("node-a")), ready("b", **nodes("node-b"))),
        "a",
        node=NO_ZONE,
    ),
    Case(
        "hints narrow what external policy Cluster uses",
        NODE_PORT,
        (ready("a", **zones("zone-1")), ready("b", **zones("zone-2"))),
        "a",
    ),
    Case(
        "hints do not narrow the local endpoints",
        BOTH_LOCAL,
        (ready("a", HERE, **zones("zone-2")), ready("b", **zones("zone-1"))),
        "b",
        "a",
    ),
    Case(
        "terminating endpoints are used whatever their hints",
        PLAIN,
        (ending("a", **zones("zone-1")), ending("b", **zones("zone-2"))),
        "ab",
    ),
]

POLICIES = [
    Case(
        "internal Local needs no endpoints of the cluster",
        INTERNAL_LOCAL,
        (ready("a"), ready("b", HERE)),
        "",
        "b",
    ),
    Case(
        "internal Local with all endpoints elsewhere has none, but the cluster has",
        INTERNAL_LOCAL,
        (ready("a"), ready("b")),
        "",
        "",
    ),
    Case(
        "internal Local with an external frontend needs both sets",
        INTERNAL_LOCAL_EXPOSED,
        (ready("a"), ready("b", HERE)),
        "ab",
        "b",
    ),
    Case(
        "external Local needs both sets, the first for sources on this node",
        EXTERNAL_LOCAL,
        (ready("a"), ready("b", HERE)),
        "ab",
        "b",
    ),
    Case(
        "external Local with all endpoints elsewhere serves sources on this node",
        EXTERNAL_LOCAL,
        (ready("a"), ready("b")),
        "ab",
        "",
    ),
    Case(
        "external Local without an external frontend does not count",
        EXTERNAL_LOCAL_UNEXPOSED,
        (ready("a"), ready("b", HERE)),
        "ab",
        "",
    ),
    Case(
        "both Local with an external frontend need both sets",
        BOTH_LOCAL,
        (ready("a"), ready("b", HERE)),
        "ab",
        "b",
    ),
    Case(
        "external Cluster needs no local endpoints",
        NODE_PORT,
        (ready("a"), ready("b", HERE)),
        "ab",
        "",
    ),
    Case(
        "an endpoint of no node is not local",
        INTERNAL_LOCAL,
        (ready("a", None),),
        "",
        "",
    ),
]

NOTHING_READY = [
    Case("no endpoints at all", PLAIN, (), "", has_any=False),
    Case("no endpoints at all, internal Local", INTERNAL_LOCAL, (), "", has_any=False),
    Case("no endpoints at all, external Local", EXTERNAL_LOCAL, (), "", has_any=False),
    Case(
        "unready endpoints that do not terminate are never used",
        BOTH_LOCAL,
        (unready("a"), unready("b", HERE)),
        "",
        has_any=False,
    ),
    Case(
        "endpoints that do not serve are never used",
        BOTH_LOCAL,
        (dead("a"), dead("b", HERE)),
        "",
        has_any=False,
    ),
    Case(
        "terminating endpoints are used when nothing is ready",
        PLAIN,
        (ending("a"), ending("b", HERE), dead("c"), unready("d")),
        "ab",
    ),
    Case(
        "terminating endpoints are not used while one is ready",
        PLAIN,
        (ready("a"), ending("b", HERE), dead("c")),
        "a",
    ),
    Case(
        "a ready endpoint that terminates is ready",
        PLAIN,
        (ready("a", terminating=True), ready("b"), ending("c")),
        "ab",
    ),
    Case(
        "a local terminating endpoint is used although another node has a ready one",
        EXTERNAL_LOCAL,
        (ready("a"), ending("b", HERE), dead("c", HERE)),
        "a",
        "b",
    ),
    Case(
        "a local terminating endpoint is not used while a local one is ready",
        EXTERNAL_LOCAL,
        (ready("a"), ready("b", HERE), ending("c", HERE)),
        "ab",
        "b",
    ),
    Case(
        "internal Local falls back to the local terminating endpoints",
        INTERNAL_LOCAL,
        (ready("a"), ending("b", HERE)),
        "",
        "b",
    ),
    Case(
        "internal Local with a terminating endpoint elsewhere has none, but the cluster has",
        INTERNAL_LOCAL,
        (ending("a"), unready("b", HERE)),
        "",
        "",
    ),
    Case(
        "external Local with a terminating endpoint elsewhere serves sources on this node",
        EXTERNAL_LOCAL,
        (ending("a"), dead("b", HERE)),
        "a",
        "",
    ),
    Case(
        "both sets fall back to terminating endpoints when nothing is ready",
        BOTH_LOCAL,
        (ending("a"), ending("b", HERE)),
        "ab",
        "b",
    ),
    Case(
        "internal Local refuses when the cluster has only unready endpoints",
        INTERNAL_LOCAL,
        (unready("a"), dead("b", HERE)),
        "",
        has_any=False,
    ),
]


def letters(endpoints: tuple[PortEndpoint, ...]) -> str:
    names = {endpoint(ip).address: letter for letter, ip in ADDRESSES.items()}
    return "".join(names[each.endpoint.address] for each in endpoints)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.sentence) for case in HINTS + POLICIES + NOTHING_READY],
)
def test_categorize(case: Case):
    sets = categorize(case.port, [port_endpoint(each) for each in case.endpoints], case.node)
    assert (letters(sets.cluster), letters(sets.local)) == (case.cluster, case.local)
    assert sets.has_any is case.has_any


PORTS = (PLAIN, NODE_PORT, INTERNAL_LOCAL, EXTERNAL_LOCAL, BOTH_LOCAL, INTERNAL_LOCAL_EXPOSED)
NAMES = st.lists(st.sampled_from(["node-a", "node-b"]), max_size=2).map(tuple)
ZONES = st.lists(st.sampled_from(["zone-1", "zone-2"]), max_size=2).map(tuple)
ENDPOINTS = st.builds(
    endpoint,
    st.sampled_from(sorted(ADDRESSES.values())),
    st.sampled_from(["node-a", "node-b", None]),
    ready=st.booleans(),
    serving=st.booleans(),
    terminating=st.booleans(),
    zone_hints=ZONES,
    node_hints=NAMES,
)


@given(
    st.sampled_from(PORTS),
    st.lists(ENDPOINTS, max_size=6, unique_by=lambda each: each.address),
    st.sampled_from([IN_ZONE_1, NO_ZONE]),
)
def test_the_sets_never_contradict_each_other(port, endpoints, own_node):
    sets = categorize(port, [port_endpoint(each) for each in endpoints], own_node)
    assert sets.has_any or sets == EndpointSets((), (), False)
    assert all(each.endpoint.node_name == own_node.name for each in sets.local)
    assert all(each.endpoint.ready or each.endpoint.is_last_resort for each in sum(sets[:2], ()))
    if port.uses_cluster_endpoints:
        assert bool(sets.cluster) is sets.has_any
