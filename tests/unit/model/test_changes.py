# SPDX-License-Identifier: Apache-2.0
"""Changes: which Services must be planned again, and what they get."""

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from ebpflb.model.address import Family
from ebpflb.model.admission.claims import Conflict
from ebpflb.model.changes import Changes
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.plan import Defaults, frontend_keys, plan_service
from ebpflb.model.pod import Pod, PodNamespace
from ebpflb.model.service import Dsr, Service, ServiceCidr, ServiceName
from tests.builders import (
    NODE,
    OTHER_NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    service,
    service_port,
)
from tests.unit.model.known import known

T = TypeVar("T")

WEB, SHOP = ServiceName("default", "web"), ServiceName("default", "shop")


def shop(cluster_ip: str = "10.96.0.20", **fields: object) -> Service:
    return service("shop", service_port(cluster_ip, **fields))


@pytest.mark.parametrize(
    ("item", "text"),
    [
        (service(), "Service default/web"),
        (endpoint_slice(), "EndpointSlice default/web-1"),
        (node(), "Node node-a"),
        (ServiceCidr("kubernetes", ()), "ServiceCIDR kubernetes"),
        (Pod("default", "web-1"), "Pod default/web-1"),
        (PodNamespace("default"), "Namespace default"),
    ],
)
def test_keys_name_objects(item: ApiObject, text: str):
    assert str(key_of(item)) == text


def test_nothing_is_known_at_first():
    changes = Changes(NODE)
    assert changes.take() == set()
    assert changes.names() == set()
    assert changes.plan(WEB) == ()
    assert changes.service(WEB) is None
    assert changes.slices(WEB) == ()
    assert changes.conflicts() == ()
    assert changes.node == node()


@pytest.mark.parametrize("slice_first", [True, False])
def test_a_slice_may_come_before_or_after_its_service(slice_first: bool):
    pair: list[ApiObject] = [service(), endpoint_slice("web-1", endpoint())]
    changes = Changes(NODE)
    for item in reversed(pair) if slice_first else pair:
        changes.set(item)
    assert changes.take() == {WEB}
    assert len(changes.plan(WEB)[0].local.backends) == 1


def test_a_new_slice_of_a_known_service_is_planned():
    changes = known(service(), shop())
    changes.set(endpoint_slice("web-1", endpoint()))
    assert changes.take() == {WEB}


def test_a_slice_without_its_service_changes_nothing():
    changes = Changes(NODE)
    changes.set(endpoint_slice("web-1", endpoint()))
    assert changes.take() == set()
    assert changes.slices(WEB) == (endpoint_slice("web-1", endpoint()),)


def test_only_what_changed_is_planned_again():
    changes = known(service(), shop(), endpoint_slice("web-1", endpoint()))
    changes.set(endpoint_slice("web-1", endpoint("10.1.0.2")))
    assert changes.take() == {WEB}
    assert changes.take() == set()


def test_an_equal_object_is_no_change():
    changes = known(service(), endpoint_slice("web-1", endpoint()), node(zone="zone-1"))
    changes.set(service())
    changes.set(endpoint_slice("web-1", endpoint()))
    changes.set(node(zone="zone-1"))
    assert changes.take() == set()


def test_changes_that_cancel_each_other_out_are_none():
    changes = known(service(), endpoint_slice("web-1", endpoint()))
    changes.set(endpoint_slice("web-1"))
    changes.set(endpoint_slice("web-1", endpoint()))
    changes.remove(key_of(service()))
    changes.set(service())
    changes.set(shop())
    changes.remove(key_of(shop()))
    assert changes.take() == set()


def test_a_removed_service_is_named_once_and_has_no_plan():
    changes = known(service(), endpoint_slice("web-1", endpoint()))
    changes.remove(key_of(service()))
    assert changes.take() == {WEB}
    assert changes.take() == set()
    assert changes.plan(WEB) == ()
    assert changes.names() == set()


def test_a_removed_slice_takes_its_endpoints_along():
    changes = known(service(), endpoint_slice("web-1", endpoint()), endpoint_slice("web-2"))
    changes.remove(ObjectKey(Kind.ENDPOINT_SLICE, "default", "web-1"))
    assert changes.take() == {WEB}
    assert changes.plan(WEB)[0].local.backends == ()
    assert changes.slices(WEB) == (endpoint_slice("web-2"),)


def test_the_slices_of_all_services_are_reported_also_of_unknown_ones():
    first, second = endpoint_slice(), endpoint_slice("web-2")
    changes = known(first, second)
    assert changes.all_slices() == [(WEB, (first, second))]
    changes.remove(key_of(first))
    assert changes.all_slices() == [(WEB, (second,))]


def test_removing_what_is_unknown_is_no_error():
    changes = known(service())
    changes.remove(key_of(shop()))
    changes.remove(key_of(endpoint_slice()))
    changes.remove(key_of(node()))
    assert changes.take() == set()


def test_a_slice_that_moves_to_another_service_changes_both():
    changes = known(service(), shop(), endpoint_slice("web-1", endpoint()))
    changes.set(endpoint_slice("web-1", endpoint(), service="shop"))
    assert changes.take() == {WEB, SHOP}
    assert changes.plan(WEB)[0].local.backends == ()
    assert len(changes.plan(SHOP)[0].local.backends) == 1
    assert changes.slices(WEB) == ()


def test_the_zone_of_the_own_node_changes_everything():
    changes = known(service(), shop())
    changes.set(node(zone="zone-1"))
    assert changes.take() == {WEB, SHOP}
    changes.remove(key_of(node()))
    assert changes.take() == {WEB, SHOP}


def test_other_fields_of_the_own_node_change_no_plan():
    changes = known(service(), node(zone="zone-1"))
    changes.set(replace(node(zone="zone-1"), eligible=False))
    assert changes.take() == set()
    assert not changes.node.eligible


def test_the_first_address_of_a_family_of_the_own_node_changes_everything():
    changes = known(service(), shop())
    for addresses, names in (
        (("192.0.2.1",), {WEB, SHOP}),
        (("192.0.2.1", "192.0.2.2"), set()),
        (("192.0.2.1", "192.0.2.2", "fd00::2"), {WEB, SHOP}),
        (("192.0.2.2", "fd00::2"), {WEB, SHOP}),
    ):
        changes.set(node(addresses=addresses))
        assert changes.take() == names


def test_bound_addresses_go_before_those_of_the_node():
    changes = Changes(NODE, (address("192.0.2.9"),))
    assert changes.node.primary[Family.IPV4] == address("192.0.2.9")
    changes.set(node(addresses=("192.0.2.1", "fd00::2")))
    assert changes.node.primary[Family.IPV4] == address("192.0.2.9")
    assert changes.node.primary[Family.IPV6] == address("fd00::2")


def test_other_nodes_do_not_matter():
    changes = known(service())
    changes.set(node(OTHER_NODE, zone="zone-2"))
    assert changes.take() == set()
    assert changes.node == node()


def test_the_plan_heeds_the_zone_of_the_own_node():
    endpoints = (
        endpoint("10.1.0.1", zone_hints=("zone-1",)),
        endpoint("10.1.0.2", zone_hints=("zone-2",)),
    )
    slices = endpoint_slice("web-1", *endpoints)
    changes = known(service(), slices, node(zone="zone-2"))
    assert changes.plan(WEB) == plan_service(service(), [slices], node(zone="zone-2"))
    assert len(changes.plan(WEB)[0].local.backends) == 1


def test_of_two_services_of_unknown_age_with_one_frontend_the_first_name_gets_it():
    changes = known(service(), shop("10.96.0.10", node_port=30080))
    (key,) = frontend_keys(service())
    assert changes.conflicts() == (Conflict(key, winner=SHOP, loser=WEB),)
    assert changes.plan(SHOP)[0].key == key
    assert changes.plan(WEB) == ()


def test_a_loser_keeps_its_other_frontends():
    changes = known(service("web", service_port(node_port=30080)), shop(node_port=30080))
    assert [each.type for each in changes.plan(WEB)] == ["ClusterIP"]
    assert [each.type for each in changes.plan(SHOP)] == ["ClusterIP", "NodePort"]


@pytest.mark.parametrize("leaves", ["is removed", "moves away", "loses its ports"])
def test_the_loser_is_planned_again_when_the_winner_goes(leaves: str):
    changes = known(service(), shop("10.96.0.10"))
    if leaves == "is removed":
        changes.remove(key_of(shop()))
    elif leaves == "moves away":
        changes.set(shop("10.96.0.30"))
    else:
        changes.set(replace(shop(), ports=()))
    assert changes.take() == {WEB, SHOP}
    assert changes.conflicts() == ()
    assert len(changes.plan(WEB)) == 1


def test_the_loser_is_planned_again_when_the_winner_comes():
    changes = known(service())
    changes.set(shop("10.96.0.10"))
    assert changes.take() == {WEB, SHOP}
    assert changes.plan(WEB) == ()


def test_the_loser_is_left_alone_while_the_winner_keeps_the_frontend():
    changes = known(service(), shop("10.96.0.10"))
    changes.set(shop("10.96.0.10", affinity_timeout=60))
    assert changes.take() == {SHOP}


def test_all_losers_are_reported():
    bank = service("bank")
    changes = known(service(), shop("10.96.0.10"), bank)
    assert [(each.winner.name, each.loser.name) for each in changes.conflicts()] == [
        ("bank", "shop"),
        ("bank", "web"),
    ]


def test_whether_all_are_masqueraded_is_known_to_every_plan():
    changes = Changes(NODE, defaults=Defaults(masquerade_all=True))
    changes.set(service())
    assert [each.masquerade for each in changes.plan(WEB)] == [True]


def ranges(changes: Changes) -> list[str]:
    return list(changes.service_ranges)


def test_the_ranges_of_all_service_cidrs_are_known():
    assert ranges(known(service())) == []
    changes = known(service())
    first = ServiceCidr("kubernetes", ("10.96.0.0/12", "fd00:96::/108"))
    changes.set(first)
    changes.set(ServiceCidr("more", ("10.112.0.0/16", "10.96.0.0/12")))
    assert ranges(changes) == ["10.112.0.0/16", "10.96.0.0/12", "fd00:96::/108"]
    changes.set(ServiceCidr("more", ("10.113.0.0/16",)))
    changes.remove(key_of(first))
    assert ranges(changes) == ["10.113.0.0/16"]


def test_a_service_cidr_plans_no_service_again():
    changes = known(service())
    changes.set(ServiceCidr("kubernetes", ("10.96.0.0/12",)))
    assert changes.take() == set()


def seen_meanwhile(act: Callable[[], None], look: Callable[[], T]) -> set[T]:
    """What another thread may find while `act` is under way: looked for at each line of it."""
    seen: set[T] = set()

    def trace(*_: object) -> Any:
        seen.add(look())
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return seen


@pytest.mark.parametrize("others", [(), (endpoint_slice("web-2"),)])
def test_other_threads_see_a_slice_before_or_after_it_is_replaced(others: tuple[ApiObject, ...]):
    old, new = endpoint_slice("web-1"), endpoint_slice("web-1", endpoint())
    changes = known(*others, old)
    seen = seen_meanwhile(lambda: changes.set(new), lambda: changes.slices(WEB))
    assert seen == {(*others, old), (*others, new)}


def test_other_threads_never_miss_a_slice_that_goes_to_another_service():
    changes = known(endpoint_slice("web-1"))
    moved = endpoint_slice("web-1", service="shop")
    seen = seen_meanwhile(lambda: changes.set(moved), lambda: bool(changes.all_slices()))
    assert seen == {True}
    assert changes.all_slices() == [(SHOP, (moved,))]


@pytest.mark.parametrize(
    ("pod", "namespace", "is_left_alone"),
    [
        (None, None, False),
        (False, None, True),
        (None, False, True),
        (True, False, False),
        (False, True, True),
    ],
)
def test_a_pod_opts_out_by_itself_or_with_its_namespace(
    pod: bool | None, namespace: bool | None, is_left_alone: bool
):
    changes = Changes(NODE)
    changes.set(PodNamespace("default", namespace))
    changes.set(Pod("default", "web-1", (address("10.1.0.1"), address("fd00::1")), pod))
    both = {address("10.1.0.1"), address("fd00::1")}
    assert changes.pod_sockets.tc_only == (both if is_left_alone else set())
    assert changes.take() == set()


def test_a_pod_of_a_namespace_that_is_not_known_has_not_opted_out():
    changes = Changes(NODE)
    changes.set(Pod("default", "web-1", (address("10.1.0.1"),)))
    assert changes.pod_sockets.tc_only == set()


def test_pods_are_known_by_uid_and_address_as_long_as_they_are_there():
    changes = Changes(NODE)
    both = address("10.1.0.1"), address("fd00::1")
    changes.set(Pod("default", "web-1", both, uid="5a0c"))
    changes.set(Pod("default", "web-2", (address("10.1.0.2"),)))
    assert changes.pod_sockets.uids == dict.fromkeys(both, "5a0c")
    changes.remove(ObjectKey(Kind.POD, "default", "web-1"))
    assert changes.pod_sockets.uids == {}


def test_pods_and_namespaces_that_are_gone_opt_nobody_out():
    changes = Changes(NODE)
    changes.set(Pod("default", "web-1", (address("10.1.0.1"),)))
    changes.set(PodNamespace("default", False))
    assert changes.pod_sockets.tc_only
    changes.remove(ObjectKey(Kind.NAMESPACE, "", "default"))
    assert not changes.pod_sockets.tc_only
    changes.set(Pod("default", "web-1", (address("10.1.0.1"),), False))
    assert changes.pod_sockets.tc_only
    changes.remove(ObjectKey(Kind.POD, "default", "web-1"))
    assert not changes.pod_sockets.tc_only


def test_what_is_wrong_with_a_service_is_reported_until_it_is_right_or_gone():
    changes = Changes(NODE)
    changes.set(service("b", problems=("two", "three")))
    changes.set(service("a", problems=("one",)))
    a, b = ServiceName("default", "a"), ServiceName("default", "b")
    told = [(each.service, each.text) for each in changes.problems()]
    assert told == [(a, "one"), (b, "two"), (b, "three")]
    changes.set(service("a"))
    assert [each.text for each in changes.problems()] == ["two", "three"]
    changes.remove(key_of(service("b")))
    assert changes.problems() == ()


@pytest.mark.parametrize(("option", "told"), [(Dsr.OFF, 1), (Dsr.ANNOTATED, 0), (Dsr.ALL, 0)])
def test_an_annotation_without_effect_is_reported(option: Dsr, told: int):
    changes = Changes(NODE, defaults=Defaults(dsr=option))
    changes.set(service("web", dsr=True, problems=("one",)))
    changes.set(shop())
    assert [each.service for each in changes.problems()] == [WEB] * (1 + told)
    assert sum("has no effect" in each.text for each in changes.problems()) == told
    changes.set(service("web", dsr=False))
    assert changes.problems() == ()
