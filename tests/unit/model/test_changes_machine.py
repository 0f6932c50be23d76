# SPDX-License-Identifier: Apache-2.0
"""Changes as a state machine: any order of changes leads to the same result as the final
objects.
"""

from collections import defaultdict

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ebpflb.model.changes import Changes, ServiceNames
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import ApiObject, ObjectKey, key_of
from ebpflb.model.plan import Frontend, FrontendKey, frontend_keys, plan_service
from ebpflb.model.service import Service, ServiceName
from tests.builders import NODE, node
from tests.some_objects import NODES, SERVICES, SLICES

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
