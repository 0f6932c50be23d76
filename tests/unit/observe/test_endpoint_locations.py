# SPDX-License-Identifier: Apache-2.0
from cProfile import Profile

import pytest

from ebpflb.model.address import Family, parse_address
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import ObjectKey, key_of
from ebpflb.model.pod import NOBODY, NamedPod
from ebpflb.observe.endpoint_locations import EndpointLocation, EndpointLocations
from ebpflb.source.interface import SourceEvent

POD = parse_address("10.1.0.1")
OTHER_POD = parse_address("10.1.0.2")


def piece(name, *addresses, **fields):
    endpoints = PackedEndpoints(Endpoint(address, **fields) for address in addresses)
    return EndpointSlice("default", name, "web", Family.IPV4, (), endpoints)


@pytest.fixture
def locations():
    return EndpointLocations("node-a")


def note(locations, *upserts, gone=()):
    keys: tuple[ObjectKey, ...] = tuple(map(key_of, gone))
    locations.note(SourceEvent(upserts, keys, {}, initial=False, complete=True))


def test_an_endpoint_is_where_its_slice_says(locations):
    note(locations, piece("web-1", POD, pod="default/web-0", node_name="node-b", zone="z2"))
    note(locations, piece("web-2", OTHER_POD))
    assert locations == {
        POD: EndpointLocation("default/web-0", "node-b", "z2"),
        OTHER_POD: EndpointLocation(),
    }


def test_an_endpoint_goes_with_the_last_slice_that_has_it(locations):
    first, second = piece("web-1", POD, OTHER_POD), piece("web-2", POD)
    note(locations, first, second)
    note(locations, piece("web-1", OTHER_POD))
    assert set(locations) == {POD, OTHER_POD}
    note(locations, gone=[second])
    assert set(locations) == {OTHER_POD}
    note(locations, gone=[first, second])
    assert locations == {}


def test_a_pod_that_takes_over_an_address_has_it(locations):
    note(locations, piece("web-1", POD, pod="default/old"))
    note(locations, piece("web-1", POD, pod="default/new"))
    assert locations[POD].pod == "default/new"


def test_only_the_own_node_gives_the_own_zone(locations):
    note(locations, Node("node-b", zone="z2"), Node("node-a", zone="z1"))
    assert locations.own == EndpointLocation(node="node-a", zone="z1")


def test_a_pod_is_known_by_its_address_and_stays_so_when_it_is_gone(locations):
    first = piece("web-1", POD, pod="default/a")
    note(locations, first, piece("web-2", OTHER_POD, pod="default/b"))
    note(locations, gone=[first])
    assert locations.keys() == {OTHER_POD}
    assert locations.pod(POD) == NamedPod("default/a")
    assert locations.pod(OTHER_POD) == NamedPod("default/b")
    assert locations.pod(parse_address("10.9.9.9")) == NOBODY
    note(locations, piece("web-1", POD, pod="default/c"))
    assert locations.pod(POD) == NamedPod("default/c")


def test_a_pod_behind_many_services_is_found_as_fast_as_one_behind_a_single_one(locations):
    """Calls of functions are counted: a tenant may have any number of slices with one address."""

    def calls() -> int:
        profile = Profile()
        assert profile.runcall(locations.pod, POD) == NamedPod("default/a")
        profile.runcall(note, locations, piece("web-0", POD, pod="default/a"))
        return sum(each.callcount for each in profile.getstats())

    note(locations, piece("web-0", POD, pod="default/a"))
    once = calls()
    note(locations, *(piece(f"web-{number}", POD, pod="default/a") for number in range(1, 1000)))
    assert calls() == once


def test_a_slice_without_names_does_not_hide_the_pod(locations):
    note(locations, piece("web-1", POD, pod="default/a"), piece("by-hand", POD))
    assert locations.pod(POD) == NamedPod("default/a")


def test_pods_that_are_gone_do_not_gather_for_ever(locations):
    for number in range(3000):
        address = parse_address(f"10.2.{number >> 8}.{number & 255}")
        note(locations, piece("web-1", address, pod=f"default/{number}"))
        assert locations.pod(address) == NamedPod(f"default/{number}")
    assert len(locations._gone) < 1100
    assert locations.pod(parse_address("10.2.11.0")) == NamedPod("default/2816")


def test_what_a_new_version_of_a_slice_no_longer_has_is_not_found(locations):
    note(locations, piece("web-1", POD, OTHER_POD))
    note(locations, piece("web-1", OTHER_POD))
    assert (locations.get(POD), locations.get(OTHER_POD)) == (None, EndpointLocation())
    note(locations, gone=[piece("web-1")])
    assert locations.get(OTHER_POD) is None
