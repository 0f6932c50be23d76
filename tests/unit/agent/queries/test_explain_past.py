# SPDX-License-Identifier: Apache-2.0
"""What is told of a moment of the past: what the model wanted then."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebpflb.agent.explain_past import explain_past
from ebpflb.cli.explain_text import Outcome, outcome_of
from ebpflb.config.moment import rfc3339_ns
from ebpflb.dataplane.explain.question import ExplainQuestion
from ebpflb.dataplane.explain.steps import NO_LOCAL_PASSES
from ebpflb.errors import ConfigError, QueryError
from ebpflb.model.address import WILDCARD, Family, Protocol, SocketAddress
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import EjectionChange, Ejections
from ebpflb.model.explain import wanted
from ebpflb.model.extensions.limits import OpenLimit
from ebpflb.model.extensions.vips import NoLocalEndpoint, Unserved
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import TrafficPolicy
from ebpflb.observe.served.kept_changes import KeptChanges
from ebpflb.observe.served.recorder import ServedRecorder
from ebpflb.observe.served.then import PastServices
from ebpflb.source.interface import SourceEvent
from tests.builders import (
    NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    port_name,
    service,
    service_port,
    terminating,
)
from tests.some_objects import AGES, NAMES, NODES, PORTS, SLICES, some_service

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
NODE_IP, POD, OUTSIDE = "192.0.2.1", "10.1.0.9", "198.51.100.7"
VIP = "10.96.0.1"
NO_FAILURES: dict[SocketAddress, str] = {}


class Past:
    """An agent with a history, which is asked about it."""

    def __init__(self, directory: Path) -> None:
        self.now = START
        self.changes = self.no_changes()
        kept = KeptChanges(directory / "a" / "b" / "served", 1 << 20, lambda: self.now)
        self.recorder = ServedRecorder(self.changes, kept, lambda: self.now)
        self.services = PastServices(kept, self.no_changes)

    def no_changes(self) -> Changes:
        return Changes(NODE, ejections=Ejections(3))

    def serve(self, *upserts: ApiObject, gone: tuple[ObjectKey, ...] = ()) -> int:
        """From the next second on; returns that."""
        for key in gone:
            self.changes.remove(key)
        for item in upserts:
            self.changes.set(item)
        self.changes.take()
        self.recorder.note(SourceEvent(upserts, gone, {}, initial=False))
        self.now += SECOND
        self.recorder.in_force()
        self.recorder.write()
        return self.now

    def told(
        self, moment: int, target: str = "default/web", source: str = "", **more: Any
    ) -> dict[str, Any]:
        failures = more.pop("failures", NO_FAILURES)
        question = ExplainQuestion(target, source, **{"port": "80", **more})
        found = explain_past(
            self.services, question, moment, {address("10.9.9.9")}, lambda *_: failures
        )
        plain: dict[str, Any] = msgspec.to_builtins(found)
        return plain


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path)


def own_node(**fields: Any) -> ApiObject:
    return node(addresses=(NODE_IP,), **fields)


def backends(found: dict[str, Any]) -> list[tuple[str, float]]:
    return [(each["address"], each["chance"]) for each in found["kernel"]["backends"]]


def whys(found: dict[str, Any]) -> list[str]:
    return [each["why"] for each in found["model"]["endpoints"]]


def test_each_moment_has_its_endpoints_and_why_they_were_used(past):
    port = service_port(VIP)
    one = past.serve(service("web", port), endpoint_slice("web-1", endpoint("10.1.0.1")))
    both = [terminating("10.1.0.1"), endpoint("10.1.0.2")]
    two = past.serve(endpoint_slice("web-1", *both))
    gone = past.serve(gone=(ObjectKey(Kind.ENDPOINT_SLICE, "default", "web-1"),))
    first, second, third = (past.told(moment) for moment in (one, two, gone))
    assert (backends(first), whys(first)) == ([("10.1.0.1", 1)], ["ready"])
    assert backends(second) == [("10.1.0.2", 1)]
    assert whys(second) == ["terminating, while others are ready", "ready"]
    assert [found["since"] for found in (first, second, third)] == [
        rfc3339_ns(each) for each in (one, two, gone)
    ]
    assert (third["verdict"], third["kernel"]["why"]) == ("refused", "no usable endpoint")
    assert [outcome_of(each) for each in (first, second, third)] == [
        Outcome.WORKS,
        Outcome.WORKS,
        Outcome.FAILS,
    ]


def test_chances_were_those_of_the_weights(past):
    now = past.serve(
        service("web", service_port(VIP)),
        endpoint_slice("web-1", endpoint("10.1.0.1"), weight=1),
        endpoint_slice("web-2", endpoint("10.1.0.2"), weight=3),
    )
    assert backends(past.told(now)) == [("10.1.0.1", 0.25), ("10.1.0.2", 0.75)]


def test_a_service_that_is_gone_is_explained_of_when_it_was_there(past):
    there = past.serve(service("web", service_port(VIP)), endpoint_slice("web-1", endpoint()))
    gone = past.serve(gone=(ObjectKey(Kind.SERVICE, "default", "web"),))
    assert past.told(there)["target"]["service"] == "default/web"
    with pytest.raises(ConfigError, match="there was no Service default/web then"):
        past.told(gone)
    assert past.told(gone, VIP)["verdict"] == "passes"
    assert past.told(there, VIP)["target"]["service"] == "default/web"


def test_a_port_that_a_cluster_ip_did_not_have_was_refused(past):
    now = past.serve(service("web", service_port(VIP)), endpoint_slice("web-1", endpoint()))
    found = past.told(now, VIP, port="81")
    assert (found["verdict"], found["kernel"]["reason"]) == ("refused", "unknown_port")
    with pytest.raises(ConfigError, match="has no port '81'"):
        past.told(now, port="81")


@pytest.mark.parametrize(
    ("source", "wishes", "expected"),
    [
        (OUTSIDE, (None,), ("passes", "")),
        (OUTSIDE, (Unserved.PASS,), ("passes", "")),
        (OUTSIDE, (Unserved.PASS, Unserved.REJECT), ("refused", "unknown_port")),
        (OUTSIDE, (Unserved.REJECT, Unserved.DROP), ("dropped", "unserved_port")),
        ("10.9.9.9", (Unserved.DROP,), ("passes", "")),
    ],
)
def test_a_port_that_a_load_balancer_ip_did_not_have_was_what_its_services_asked_for(
    past, source, wishes, expected
):
    shared = (address("203.0.113.1"),)
    now = past.serve(
        *(
            service(
                f"web-{i}", service_port(f"10.96.0.{i}", port=i, load_balancer_ips=shared)
            ).annotated_with(vip_unserved=wish)
            for i, wish in enumerate(wishes, 1)
        )
    )
    found = past.told(now, "203.0.113.1", source=source, port="81")
    assert (found["verdict"], found["kernel"]["reason"]) == expected


def test_without_a_local_endpoint_packets_may_have_passed(past):
    port = service_port(
        VIP, load_balancer_ips=(address("203.0.113.1"),), external_policy=TrafficPolicy.LOCAL
    )
    asking = service("web", port, no_local_endpoint=NoLocalEndpoint.PASS)
    now = past.serve(asking, endpoint_slice("web-1", endpoint(node="node-9")))
    found = past.told(now, "203.0.113.1", source=OUTSIDE)
    assert (found["verdict"], found["kernel"]["why"]) == ("passes", NO_LOCAL_PASSES)


def test_a_service_without_a_cluster_ip_is_told(past):
    headless = past.serve(replace(service(), ports=()))
    with pytest.raises(ConfigError, match="had no ClusterIP then"):
        past.told(headless)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("", "a process of this node"),
        (NODE_IP, "a process of this node"),
        (POD, "a pod of this node"),
        ("10.9.9.9", "a pod of this node"),
        (OUTSIDE, "elsewhere"),
    ],
)
def test_a_client_is_of_this_node_by_its_pod_ranges_and_pods(past, source, kind):
    ranges = replace(node(addresses=(NODE_IP,)), pod_ranges=("10.1.0.0/24",))
    now = past.serve(ranges, service("web", service_port(VIP)), endpoint_slice("web-1", endpoint()))
    found = past.told(now, source=source)
    assert found["client"]["kind"] == kind
    side = "elsewhere" if source == OUTSIDE else "this node"
    assert found["kernel"]["from"] == side


def test_a_client_of_another_family_is_told(past):
    now = past.serve(service("web", service_port(VIP)), endpoint_slice("web-1", endpoint()))
    with pytest.raises(ConfigError, match="SRC has no IPv4 address"):
        past.told(now, VIP, source="fd00::7")


def test_policy_local_drops_at_nodes_without_an_endpoint(past):
    port = service_port(VIP, node_port=30080, external_policy=TrafficPolicy.LOCAL)
    elsewhere = endpoint_slice("web-1", endpoint("10.1.0.1", "node-b"))
    now = past.serve(own_node(), service("web", port), elsewhere)
    found = past.told(now, NODE_IP, source=OUTSIDE, port="30080")
    assert (found["verdict"], found["kernel"]["reason"]) == ("dropped", "no_local_endpoint")
    assert whys(found) == ["on node node-b, and the policy is Local"]
    assert past.told(now, NODE_IP, source="10.9.9.9", port="30080")["verdict"] == "translated"


def test_source_ranges_drop(past):
    port = service_port(
        VIP, load_balancer_ips=(address("203.0.113.1"),), source_ranges=("198.51.100.0/24",)
    )
    now = past.serve(own_node(), service("web", port), endpoint_slice("web-1", endpoint()))
    inside = past.told(now, "203.0.113.1", source=OUTSIDE)
    outside = past.told(now, "203.0.113.1", source="198.51.101.7")
    assert inside["verdict"] == "translated"
    assert (outside["verdict"], outside["kernel"]["reason"]) == ("dropped", "source_range")


def test_ejected_endpoints_and_failed_ones_are_told_of_then(past):
    places = [endpoint("10.1.0.1"), endpoint("10.1.0.2")]
    before = past.serve(service("web", service_port(VIP)), endpoint_slice("web-1", *places))
    place = SocketAddress(address("10.1.0.1"), 8080)
    past.recorder.ejected(EjectionChange(port_name(), place, 10.0, 3, 1))
    out = past.serve()
    past.recorder.ejected(EjectionChange(port_name(), place, 0))
    back = past.serve()
    failures = {SocketAddress(address("10.1.0.2"), 8080): "refused its last connection"}
    found = past.told(out, failures=failures)
    assert backends(found) == [("10.1.0.2", 1)]
    assert whys(found)[0] == "ready, but ejected: connections to it from this node have failed"
    assert found["kernel"]["backends"][0]["trouble"] == "refused its last connection"
    assert outcome_of(found) is Outcome.LIKELY_FAILS
    assert [len(backends(past.told(each))) for each in (before, back)] == [2, 2]


def test_the_backup_of_then_is_told_and_that_spilling_over_is_not_kept(past):
    static = service("static", service_port("10.96.0.20"))
    lent = endpoint_slice("static-1", endpoint("10.2.0.1"), service="static")
    own = endpoint_slice("web-1", endpoint())
    web = service("web", service_port(VIP), backup="static")
    with_own = past.serve(web, static, lent, own)
    without = past.serve(gone=[key_of(own)])
    found = past.told(without)
    assert backends(found) == [("10.2.0.1", 1)]
    assert found["model"]["backup"].endswith("new connections go to its backup default/static")
    assert whys(found) == ["ready; of the backup"]
    found = past.told(with_own)
    assert backends(found) == [("10.1.0.1", 1)]
    assert found["model"]["backup"] == "default/static, once no endpoint of its own is usable"
    limited = past.serve(service("web", service_port(VIP), backup="static", spill_at=10))
    told = past.told(limited)["model"]["backup"]
    assert told.endswith("; whether it spilled over is not kept")


def test_limits_of_then_are_told_and_that_connections_are_not_kept(past):
    places = endpoint_slice("web-1", endpoint())
    without = past.serve(service("web", service_port(VIP)), places)
    limited = past.serve(service("web", service_port(VIP), max_open=OpenLimit(5)))
    assert past.told(without)["kernel"]["limits"] == ""
    found = past.told(limited)["kernel"]
    assert (found["verdict"], found["frontend"]["limits"]) == ("translated", "5 open per endpoint")
    assert found["limits"] == "how many connections endpoints and clients had is not kept"


def test_of_two_services_that_ask_for_the_same_the_one_that_got_it_is_told(past):
    older = service("api", service_port(VIP), created="2024-01-01T00:00:00Z")
    younger = service("web", service_port(VIP), created="2025-01-01T00:00:00Z")
    now = past.serve(older, younger)
    assert past.told(now, VIP)["target"]["service"] == "default/api"
    assert past.told(now)["target"]["service"] == "default/api"


def test_nothing_is_told_of_before(past):
    past.serve(service("web", service_port(VIP)))
    with pytest.raises(QueryError, match="it is kept since"):
        past.told(START)


CLIENTS = st.sampled_from(["", NODE_IP, "10.9.9.9", OUTSIDE])
PLACES = st.sampled_from([(VIP, 80), ("10.96.0.2", 81), (NODE_IP, 30080)])
SERVICES = st.builds(some_service, NAMES, st.lists(PORTS, max_size=1), AGES)
STEPS = st.lists(st.tuples(SERVICES | SLICES | NODES, st.booleans()), min_size=1, max_size=6)


@settings(max_examples=40)
@given(STEPS, CLIENTS, PLACES)
def test_of_any_moment_what_was_wanted_then_is_told(steps, client, place):
    with TemporaryDirectory() as directory:
        past = Past(Path(directory))
        past.serve(own_node())
        then = list(_played(past, steps, client, place))
        for moment, expected in then:
            found = past.told(moment, place[0], client, port=str(place[1]))
            if expected.frontend:
                assert found["verdict"] == expected.verdict
            else:
                assert found["verdict"] in ("passes", "refused")
            assert list(found["model"]["endpoints"]) == list(expected.endpoints)


def _played(past: Past, steps: Any, client: str, place: tuple[str, int]) -> Iterator[Any]:
    key = FrontendKey(address(place[0]), place[1], Protocol.TCP)
    keys = [key, key._replace(address=WILDCARD[Family.IPV4])][: 1 + (place[0] == NODE_IP)]
    for item, is_removal in steps:
        if key_of(item).name == NODE:
            item = own_node(zone=item.zone)
        if is_removal and key_of(item).name != NODE:
            moment = past.serve(gone=(key_of(item),))
        else:
            moment = past.serve(item)
        source = address(client or NODE_IP)
        yield moment, wanted(past.changes, keys, None, source, is_outside=client == OUTSIDE)
