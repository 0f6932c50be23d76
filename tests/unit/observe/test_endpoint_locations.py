# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.model.address import Family, parse_address
from ebpflb.model.changes import ObjectKey, key_of
from ebpflb.model.endpoint import Endpoint, EndpointSlice
from ebpflb.model.node import Node
from ebpflb.observe.endpoint_locations import Place, Places
from ebpflb.source.source_event import SourceEvent

POD = parse_address("10.1.0.1")
OTHER_POD = parse_address("10.1.0.2")


def piece(name, *addresses, **fields):
    endpoints = tuple(Endpoint(address, **fields) for address in addresses)
    return EndpointSlice("default", name, "web", Family.IPV4, (), endpoints)


@pytest.fixture
def places():
    return Places("node-a")


def note(places, *upserts, gone=()):
    keys: tuple[ObjectKey, ...] = tuple(map(key_of, gone))
    places.note(SourceEvent(upserts, keys, {}, initial=False, complete=True))


def test_an_endpoint_is_where_its_slice_says(places):
    note(places, piece("web-1", POD, pod="default/web-0", node_name="node-b", zone="z2"))
    note(places, piece("web-2", OTHER_POD))
    assert places.places() == {POD: Place("default/web-0", "node-b", "z2"), OTHER_POD: Place()}


def test_an_endpoint_goes_with_the_last_slice_that_has_it(places):
    first, second = piece("web-1", POD, OTHER_POD), piece("web-2", POD)
    note(places, first, second)
    note(places, piece("web-1", OTHER_POD))
    assert set(places.places()) == {POD, OTHER_POD}
    note(places, gone=[second])
    assert set(places.places()) == {OTHER_POD}
    note(places, gone=[first, second])
    assert places.places() == {}


def test_a_pod_that_takes_over_an_address_has_it(places):
    note(places, piece("web-1", POD, pod="default/old"))
    note(places, piece("web-1", POD, pod="default/new"))
    assert places.places()[POD].pod == "default/new"


def test_only_the_own_node_tells_the_own_zone(places):
    note(places, Node("node-b", zone="z2"), Node("node-a", zone="z1"))
    assert places.own == Place(node="node-a", zone="z1")


def test_a_pod_is_known_by_its_address_and_stays_so_when_it_is_gone(places):
    first = piece("web-1", POD, pod="default/a")
    note(places, first, piece("web-2", OTHER_POD, pod="default/b"))
    note(places, gone=[first])
    assert places.places().keys() == {OTHER_POD}
    assert (places.pod(POD), places.pod(OTHER_POD)) == ("default/a", "default/b")
    assert places.pod(parse_address("10.9.9.9")) == ""
    note(places, piece("web-1", POD, pod="default/c"))
    assert places.pod(POD) == "default/c"


def test_a_slice_without_names_does_not_hide_the_pod(places):
    note(places, piece("web-1", POD, pod="default/a"), piece("by-hand", POD))
    assert places.pod(POD) == "default/a"


def test_pods_that_are_gone_do_not_gather_for_ever(places):
    for number in range(3000):
        address = parse_address(f"10.2.{number >> 8}.{number & 255}")
        note(places, piece("web-1", address, pod=f"default/{number}"))
        assert places.pod(address) == f"default/{number}"
    assert len(places._gone) < 1100
    assert places.pod(parse_address("10.2.11.0")) == "default/2816"
