# SPDX-License-Identifier: Apache-2.0
"""The changes of one kind of object, whatever the API server sends about it."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from ebpflb.errors import SourceError
from ebpflb.model.address import Family
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey
from ebpflb.model.service import ServiceName
from ebpflb.source.api_objects import Item, item_of
from ebpflb.source.api_types import Fields
from ebpflb.source.cache import Cache
from ebpflb.source.interface import Trigger
from tests.builders import (
    Manifest,
    endpoint,
    endpoint_manifest,
    endpoint_slice,
    node,
    node_manifest,
    port_manifest,
    service,
    service_manifest,
    service_port,
    slice_manifest,
)
from tests.unit.source.scripted import item, versioned


@dataclass
class Difference:
    """What a list or an event has changed."""

    upserts: list[ApiObject] = field(default_factory=list)
    removals: list[ObjectKey] = field(default_factory=list)
    triggers: list[Trigger] = field(default_factory=list)


def replace(cache: Cache, *items: Fields | Item) -> Difference:
    return taken(cache, cache.replace(cache.read(map(sent, items))))


def change(cache: Cache, what: Fields | Item, *, deleted: bool) -> Difference:
    return taken(cache, cache.change(sent(what), deleted=deleted))


def sent(what: Fields | Item) -> Item:
    return what if isinstance(what, Item) else item(what)


def taken(cache: Cache, triggers: list[Trigger]) -> Difference:
    upserts, removals = cache.take()
    return Difference(list(upserts), list(removals), triggers)


NOTHING = Difference()
WEB, SHOP = service_manifest("web"), service_manifest("shop")
WEB_KEY = ObjectKey(Kind.SERVICE, "default", "web")
SHOP_KEY = ObjectKey(Kind.SERVICE, "default", "shop")
SLICE_KEY = ObjectKey(Kind.ENDPOINT_SLICE, "default", "web-1")
OTHER_WEB = service_manifest("web", cluster_ip="10.96.0.99")
BROKEN_WEB = service_manifest("web", ports=[port_manifest(0)])
BROKEN_PORT = "spec.ports[0].port: must be a whole number from 1 to 65535, not 0"
BROKEN_LINE = {WEB_KEY: f"Service default/web: {BROKEN_PORT}"}


@pytest.fixture
def services() -> Cache:
    return Cache(Kind.SERVICE)


@pytest.fixture
def slices() -> Cache:
    return Cache(Kind.ENDPOINT_SLICE)


def bare(manifest: Manifest) -> Manifest:
    """Without kind and apiVersion, which objects in a list do not have."""
    return {key: value for key, value in manifest.items() if key not in ("kind", "apiVersion")}


def slice_at(time: str | None, *pods: str) -> Manifest:
    """A slice whose endpoints changed at a time."""
    manifest = slice_manifest(endpoints=[endpoint_manifest(pod) for pod in pods])
    if time:
        name = "endpoints.kubernetes.io/last-change-trigger-time"
        manifest["metadata"]["annotations"] = {name: time}
    return manifest


def trigger(seconds: float | None) -> Trigger:
    return Trigger(ServiceName("default", "web"), Family.IPV4, seconds)


def test_the_first_list_is_all_new(services: Cache):
    assert len(services) == 0
    found = replace(services, bare(WEB), bare(SHOP))
    assert found == Difference(upserts=[service("web"), service("shop")])
    assert len(services) == 2


def test_another_list_reports_only_what_is_other(services: Cache):
    replace(services, WEB, SHOP, service_manifest("same"))
    found = replace(services, OTHER_WEB, service_manifest("same"), service_manifest("new"))
    other = service("web", service_port("10.96.0.99"))
    assert found == Difference(upserts=[other, service("new")], removals=[SHOP_KEY])


def test_a_list_that_breaks_off_changes_nothing(services: Cache):
    replace(services, versioned(WEB, "1", "uid-1"))

    def items() -> Iterator[Item]:
        yield item(versioned(SHOP, "2"))
        yield item(BROKEN_WEB)
        raise SourceError("away")

    with pytest.raises(SourceError, match="away"):
        services.read(items())
    assert services.errors == {}
    assert services.uid(WEB_KEY) == "uid-1"
    assert replace(services, WEB) == NOTHING


def test_a_change_is_reported_once(services: Cache):
    replace(services, WEB)
    other = service("web", service_port("10.96.0.99"))
    assert change(services, bare(OTHER_WEB), deleted=False) == Difference(upserts=[other])
    assert change(services, bare(OTHER_WEB), deleted=False) == NOTHING
    assert change(services, SHOP, deleted=False) == Difference(upserts=[service("shop")])


def test_a_deleted_object_is_removed_once(services: Cache):
    replace(services, WEB)
    assert change(services, WEB, deleted=True) == Difference(removals=[WEB_KEY])
    assert change(services, WEB, deleted=True) == NOTHING
    assert len(services) == 0


def test_uids_are_known_as_long_as_the_object_is(services: Cache):
    replace(services, versioned(WEB, "1", "uid-1"))
    assert services.uid(WEB_KEY) == "uid-1"
    change(services, versioned(WEB, "2", "uid-2"), deleted=False)
    assert services.uid(WEB_KEY) == "uid-2"
    change(services, WEB, deleted=True)
    assert services.uid(WEB_KEY) == ""
    change(services, versioned(WEB, "3", "uid-3"), deleted=False)
    replace(services, SHOP)
    assert services.uid(WEB_KEY) == ""


def test_an_unreadable_object_stays_as_it_was_and_has_an_error(services: Cache):
    replace(services, WEB)
    assert change(services, BROKEN_WEB, deleted=False) == NOTHING
    assert services.errors == BROKEN_LINE
    assert change(services, WEB, deleted=False) == NOTHING
    assert services.errors == {}


def test_an_object_that_is_unreadable_in_a_list_stays_as_it_was(services: Cache):
    replace(services, WEB)
    assert replace(services, BROKEN_WEB, SHOP) == Difference(upserts=[service("shop")])
    assert services.errors == BROKEN_LINE
    assert change(services, WEB, deleted=True).removals == [WEB_KEY]
    assert services.errors == {}


def test_an_object_that_was_never_readable_is_only_an_error(services: Cache):
    assert replace(services, BROKEN_WEB) == NOTHING
    assert change(services, BROKEN_WEB, deleted=False) == NOTHING
    assert services.errors == BROKEN_LINE
    assert change(services, SHOP, deleted=False).upserts == [service("shop")]
    assert services.errors == BROKEN_LINE
    assert replace(services, SHOP) == NOTHING
    assert services.errors == {}


def unreadable(name: str) -> Item:
    metadata = json.dumps({"name": name, "namespace": "default", "uid": f"uid-{name}"})
    return item_of(f'{{"metadata":{metadata},"spec":}}'.encode())


def test_an_object_that_is_no_json_stays_as_it_was_until_it_is_deleted(services: Cache):
    replace(services, WEB)
    line = "Service default/web: line 1, column 78: Expecting value"
    assert change(services, unreadable("web"), deleted=False) == NOTHING
    assert services.errors == {WEB_KEY: line}
    assert services.uid(WEB_KEY) == "uid-web"
    assert replace(services, unreadable("web"), SHOP) == Difference(upserts=[service("shop")])
    assert services.errors == {WEB_KEY: line}
    assert change(services, unreadable("web"), deleted=True) == Difference(removals=[WEB_KEY])
    assert services.errors == {}


@pytest.mark.parametrize("name", ["", "Not a name", "web\ufffd"])
def test_while_a_list_has_an_object_without_a_name_nothing_is_taken_for_gone(
    services: Cache, name: str
):
    replace(services, WEB, SHOP)
    assert replace(services, SHOP, unreadable(name)) == NOTHING
    (line,) = services.errors.values()
    assert re.fullmatch("Service: line 1, column [0-9]+: Expecting value", line)
    assert replace(services, SHOP) == Difference(removals=[WEB_KEY])
    assert services.errors == {}


@pytest.mark.parametrize("odd", [{}, {"metadata": 3}, {"metadata": {"name": 3, "uid": []}}])
def test_an_object_without_a_name_is_an_error_that_says_so(services: Cache, odd: Fields):
    assert change(services, odd, deleted=False) == NOTHING
    (line,) = services.errors.values()
    assert line.startswith("Service: metadata")
    assert change(services, odd, deleted=True) == NOTHING
    assert services.errors == {}


def test_a_node_is_known_by_its_name_alone():
    nodes = Cache(Kind.NODE)
    namespaced = {"metadata": {**node_manifest()["metadata"], "namespace": "odd"}}
    assert replace(nodes, namespaced) == Difference(upserts=[node()])
    key = ObjectKey(Kind.NODE, "", "node-a")
    assert change(nodes, namespaced, deleted=True) == Difference(removals=[key])


def test_an_object_without_a_namespace_is_removed_from_where_it_was_put(services: Cache):
    homeless = {**WEB, "metadata": {"name": "web"}}
    assert replace(services, homeless) == Difference(upserts=[service("web")])
    assert change(services, homeless, deleted=True) == Difference(removals=[WEB_KEY])


def test_a_slice_that_becomes_headless_is_removed(slices: Cache):
    replace(slices, slice_manifest())
    headless = slice_manifest()
    headless["metadata"]["labels"]["service.kubernetes.io/headless"] = ""
    found = change(slices, headless, deleted=False)
    assert found == Difference(removals=[SLICE_KEY], triggers=[trigger(None)])
    assert change(slices, headless, deleted=False) == NOTHING
    assert change(slices, headless, deleted=True) == NOTHING


def test_a_slice_that_is_headless_in_another_list_is_removed(slices: Cache):
    replace(slices, slice_manifest())
    assert replace(slices, slice_manifest(addressType="FQDN")).removals == [SLICE_KEY]
    assert len(slices) == 0


def test_a_changed_slice_reports_what_triggered_it(slices: Cache):
    replace(slices, slice_at("1970-01-01T00:00:10Z", "10.1.0.1"))
    found = change(slices, slice_at("1970-01-01T00:00:20Z", "10.1.0.2"), deleted=False)
    upsert = endpoint_slice("web-1", endpoint("10.1.0.2"))
    assert found == Difference(upserts=[upsert], triggers=[trigger(20.0)])


def test_a_list_reports_no_triggers(slices: Cache):
    found = replace(slices, slice_at("1970-01-01T00:00:10Z", "10.1.0.1"))
    assert found.triggers == []


def test_a_slice_that_is_the_same_reports_no_trigger(slices: Cache):
    replace(slices, slice_at("1970-01-01T00:00:10Z", "10.1.0.1"))
    assert change(slices, slice_at("1970-01-01T00:00:20Z", "10.1.0.1"), deleted=False) == NOTHING


def test_a_change_of_unknown_time_does_not_take_back_what_was_reported(slices: Cache):
    replace(slices, slice_at(None, "10.1.0.1"))
    found = change(slices, slice_at(None, "10.1.0.2"), deleted=False)
    assert len(found.upserts) == 1
    assert found.triggers == []


def test_a_deleted_slice_takes_back_what_was_reported(slices: Cache):
    replace(slices, slice_manifest())
    found = change(slices, slice_at("1970-01-01T00:00:10Z", "10.1.0.1"), deleted=True)
    assert found == Difference(removals=[SLICE_KEY], triggers=[trigger(None)])


def test_a_slice_that_is_missing_in_a_list_takes_back_what_was_reported(slices: Cache):
    replace(slices, slice_manifest())
    assert replace(slices) == Difference(removals=[SLICE_KEY], triggers=[trigger(None)])


def test_services_have_no_triggers(services: Cache):
    manifest = service_manifest()
    name = "endpoints.kubernetes.io/last-change-trigger-time"
    manifest["metadata"]["annotations"] = {name: "1970-01-01T00:00:10Z"}
    assert change(services, manifest, deleted=False).triggers == []
    assert change(services, manifest, deleted=True).triggers == []
