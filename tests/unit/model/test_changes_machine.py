# SPDX-License-Identifier: Apache-2.0
"""Changes as a state machine: any order of changes leads to the same result as the final
objects.
"""

from collections import defaultdict
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebpflb.model.changes import ApiObject, Changes, ObjectKey, ServiceNames, key_of
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.model.plan import Frontend, FrontendKey, frontend_keys, plan_service
from ebpflb.model.service import Service, ServiceName, TrafficPolicy
from tests.builders import NODE, endpoint, endpoint_slice, node, service, service_port

POLICIES = st.sampled_from(TrafficPolicy)
PORTS = st.builds(
    service_port,
    st.sampled_from(["10.96.0.1", "10.96.0.2", "fd00::1"]),
    port=st.sampled_from([80, 81]),
    node_port=st.sampled_from([0, 30080]),
    internal_policy=POLICIES,
    external_policy=POLICIES,
)
ENDPOINTS = st.builds(
    endpoint,
    st.sampled_from(["10.1.0.1", "10.1.0.2"]),
    st.sampled_from(["node-a", "node-b"]),
    ready=st.booleans(),
    terminating=st.booleans(),
    zone_hints=st.sampled_from([("zone-1",), ("zone-2",)]),
)
NAMES = st.sampled_from(["shop", "web"])


def some_service(name: str, ports: list[object], created: str) -> Service:
    made = service(name, *ports)  # type: ignore[arg-type]
    return replace(made, ports=made.ports if ports else (), created=created)


AGES = st.sampled_from(["", "2024-01-01T00:00:00Z", "2025-01-01T00:00:00Z"])
# Some want all the same, so that their age alone decides.
SERVICES = st.builds(
    some_service, NAMES, st.just([service_port()]) | st.lists(PORTS, max_size=2), AGES
)
SLICES = st.builds(
    lambda name, of, endpoints: endpoint_slice(name, *endpoints, service=of),
    st.sampled_from(["one", "two"]),
    NAMES,
    st.lists(ENDPOINTS, max_size=2),
)
NODES = st.builds(node, st.sampled_from([NODE, "node-b"]), zone=st.sampled_from(["", "zone-1"]))
OBJECTS = SERVICES | SLICES | NODES


class ChangesMachine(RuleBasedStateMachine):
    """Tells objects to Changes, and now and then plans what it names."""

    def __init__(self) -> None:
        super().__init__()
        self.changes = Changes(NODE)
        self.objects: dict[ObjectKey, ApiObject] = {}
        self.planned: dict[ServiceName, tuple[Frontend, ...]] = {}

    @rule(item=OBJECTS, ask=st.booleans())
    def set(self, item: ApiObject, ask: bool) -> None:
        self.objects[key_of(item)] = item
        self.changes.set(item)
        self.plan_if(ask)

    @rule(item=OBJECTS, ask=st.booleans())
    def remove(self, item: ApiObject, ask: bool) -> None:
        self.objects.pop(key_of(item), None)
        self.changes.remove(key_of(item))
        self.plan_if(ask)

    def plan_if(self, ask: bool) -> None:
        """What was planned before, plus what take() names, is the complete result."""
        if ask:
            for name in self.changes.take():
                self.planned[name] = self.changes.plan(name)
            assert {name: plan for name, plan in self.planned.items() if plan} == self.expected()
            assert self.changes.take() == set()

    def teardown(self) -> None:
        self.plan_if(True)

    @invariant()
    def knows_the_final_objects(self) -> None:
        services = [each for each in self.objects.values() if isinstance(each, Service)]
        assert self.changes.names() == {each.name for each in services}
        assert all(self.changes.service(each.name) == each for each in services)

    @invariant()
    def tells_every_conflict(self) -> None:
        told = {(each.key, each.winner, each.loser) for each in self.changes.conflicts()}
        assert told == {
            (key, self.winner(names), loser)
            for key, names in self.claims().items()
            for loser in names - {self.winner(names)}
        }

    def all_plans(self) -> dict[ServiceName, tuple[Frontend, ...]]:
        slices = [each for each in self.objects.values() if isinstance(each, EndpointSlice)]
        own = self.objects.get(key_of(node()))
        return {
            each.name: plan_service(each, slices, own if isinstance(own, Node) else node())
            for each in self.objects.values()
            if isinstance(each, Service)
        }

    def claims(self) -> dict[FrontendKey, ServiceNames]:
        found: dict[FrontendKey, ServiceNames] = defaultdict(lambda: ServiceNames())
        for each in self.objects.values():
            if isinstance(each, Service):
                for key in frontend_keys(each):
                    found[key].add(each.name)
        return found

    def winner(self, names: ServiceNames) -> ServiceName:
        """The Service that gets what all of these want."""
        services = (self.changes.service(name) for name in names)
        return min((each.created, each.name) for each in services if each)[1]

    def expected(self) -> dict[ServiceName, tuple[Frontend, ...]]:
        claims = self.claims()
        wanted = {
            name: tuple(each for each in frontends if self.winner(claims[each.key]) == name)
            for name, frontends in self.all_plans().items()
        }
        return {name: frontends for name, frontends in wanted.items() if frontends}


TestChangesMachine = ChangesMachine.TestCase
TestChangesMachine.settings = settings(stateful_step_count=30)
