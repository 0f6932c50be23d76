# SPDX-License-Identifier: Apache-2.0
"""What holds for any Services, backups and permissions, whatever the order of their changes."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.address import Address
from ebpflb.model.changes import Changes
from ebpflb.model.endpoint import EndpointSlice, endpoints_of
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.model.plan import Frontend
from ebpflb.model.service import Service, ServiceName, ServicePort, ServicePortName
from ebpflb.model.traffic_policy import has_usable
from tests.builders import NODE, endpoint, endpoint_slice, node, service, service_port

NAMESPACES, NAMES = ("a", "b"), ("one", "two")
SERVICES = [ServiceName(namespace, name) for namespace in NAMESPACES for name in NAMES]
ADDRESSES = {name: f"10.1.{number}" for number, name in enumerate(SERVICES)}


@st.composite
def services(draw: st.DrawFn, names: Sequence[ServiceName] = SERVICES) -> Service:
    name = draw(st.sampled_from(names))
    backup = draw(st.none() | st.sampled_from([*map(str, SERVICES), *NAMES]))
    allowed = draw(st.sampled_from([None, ("a",), ("b",), ("*",), ("c", "a")]))
    spill_at = draw(st.sampled_from([None, 5]))
    port = service_port(f"10.96.0.{SERVICES.index(name) + 1}")
    made = service(name.name, port, backup=backup, backup_for=allowed, spill_at=spill_at)
    ports = tuple(replace(each, name=each.name._replace(namespace=name[0])) for each in made.ports)
    return replace(made, name=name, ports=ports if draw(st.integers(0, 5)) else ())


@st.composite
def slices(draw: st.DrawFn, names: Sequence[ServiceName] = SERVICES) -> EndpointSlice:
    name = draw(st.sampled_from(names))
    found = [
        endpoint(
            f"{ADDRESSES[name]}.{number}",
            draw(st.sampled_from([NODE, "node-b"])),
            ready=draw(st.booleans()),
            terminating=draw(st.booleans()),
        )
        for number in range(1, draw(st.integers(0, 2)) + 1)
    ]
    return endpoint_slice(f"{name.name}-1", *found, namespace=name.namespace, service=name.name)


def owner_of(address: Address) -> ServiceName:
    return SERVICES[address[14]]


def backup_that_allows_it(changes: Changes, found: Service) -> ServiceName | None:
    """Written down once more, and apart from the model."""
    text = found.annotated.backup
    if text is None:
        return None
    name = ServiceName(*text.split("/")) if "/" in text else ServiceName(found.name[0], text)
    backup = changes.service(name)
    if backup is None or name == found.name or not backup.ports:
        return None
    allowed = backup.annotated.backup_for or ()
    same = name.namespace == found.name.namespace
    return name if same or found.name.namespace in allowed or "*" in allowed else None


def is_usable(changes: Changes, port: ServicePort) -> bool:
    return has_usable(endpoints_of(port, changes.slices(ServiceName(*port.name[:2]))))


def check(changes: Changes, spilling: set[ServiceName]) -> None:
    for name in changes.names():
        found = changes.service(name)
        assert found
        for frontend in changes.plan(name):
            owners = {owner_of(each.address) for each in frontend.others.backends}
            allowed = backup_that_allows_it(changes, found)
            assert owners <= {name, allowed}
            if is_usable(changes, found.ports[0]):
                assert owners == {name} or name in spilling
            elif allowed and is_usable(changes, changes.service(allowed).ports[0]):  # type: ignore[union-attr]
                assert owners == {allowed}
            else:
                assert not owners


# All of them, so that those with a backup have one.
WORLDS = st.tuples(*(made([name]) for name in SERVICES for made in (services, slices)))
STEPS = st.tuples(services() | slices(), st.booleans(), st.booleans())


@given(WORLDS, st.lists(STEPS, max_size=6))
def test_backends_are_its_own_or_lent_with_leave_and_only_when_needed(
    world: tuple[ApiObject, ...], steps: list[tuple[ApiObject, bool, bool]]
):
    changes = Changes(NODE)
    for each in (node(), *world):
        changes.set(each)
    check(changes, set())
    spilling = set[ServicePortName]()
    planned = dict[ServiceName, tuple[Frontend, ...]]()
    for item, ask, are_many_open in steps:
        changes.set(item)
        if ask:
            limits = changes.backups.limits()
            full = limits if are_many_open else {}
            changes.backups.observe(full, 0)
            # No time passes, so none ends while it may spill over.
            spilling = (spilling | full.keys()) & limits.keys()
            planned |= {name: changes.plan(name) for name in changes.take()}
            assert planned == {name: changes.plan(name) for name in planned}
            check(changes, {ServiceName(*each[:2]) for each in spilling})


@given(WORLDS.flatmap(st.permutations), st.lists(services() | slices(), max_size=4))
def test_the_order_of_changes_does_not_matter(world: list[ApiObject], more: list[ApiObject]):
    """What was planned at each step is in the end what all objects together come to."""
    changes, planned = Changes(NODE), dict[ServiceName, tuple[Frontend, ...]]()
    for item in (node(), *world, *more):
        changes.set(item)
        planned |= {name: changes.plan(name) for name in changes.take()}
    at_once = Changes(NODE)
    for item in changes.objects():
        at_once.set(item)
    names = at_once.take()
    assert {name: planned[name] for name in names} == {name: at_once.plan(name) for name in names}
