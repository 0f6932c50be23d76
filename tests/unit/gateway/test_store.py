# SPDX-License-Identifier: Apache-2.0
"""What is known of the objects: one that cannot be read costs no other."""

import json

import pytest

from ebpflb.errors import SourceError
from ebpflb.gateway.policy.found import FoundObjects
from ebpflb.gateway.store import APIS, KINDS, ObjectStore, _StoreFollower
from ebpflb.source.api_objects import item_of
from tests.unit.gateway.fake_api import FakeApi
from tests.unit.gateway.world import gateway, route, service, service_import
from tests.unit.source.scripted import Script


def as_item(document):
    return item_of(json.dumps(document).encode())


def filled():
    return FakeApi(gateway(), route(), service()).store


def broken(document):
    return {**document, "spec": {"listeners": 5}}


@pytest.mark.parametrize("api", APIS)
def test_all_kinds_of_an_api_must_have_been_listed(api):
    store = ObjectStore(Script(), [api])
    for kind in APIS[api]:
        assert store.found() is None, kind
        store.replace(kind, iter(()))
    assert store.found() is not None


def test_an_api_that_is_not_installed_costs_the_other_nothing():
    store = FakeApi(gateway(), service_import()).store
    del store._objects["GatewayClass"]
    found = store.found() or FoundObjects()
    assert (list(found.gateways), list(found.imports)) == ([], [("shop", "db")])
    store.replace("GatewayClass", iter(()))
    del store._objects["ImportedSlice"]
    found = store.found() or FoundObjects()
    assert (list(found.gateways), list(found.imports)) == ([("shop", "gw")], [])


def test_of_an_api_that_is_not_served_nothing_is_asked():
    for api, kinds in APIS.items():
        assert len(ObjectStore(Script(), [api])._reflectors) == len(kinds)


def test_an_object_that_cannot_be_read_stays_as_it_was_and_is_told(caplog):
    store = filled()
    store.change("Gateway", as_item(broken(gateway())), deleted=False)
    store.change("Gateway", as_item(broken(gateway(name="new"))), deleted=False)
    found = store.found()
    assert list(found.gateways) == [("shop", "gw")]
    assert found.gateways["shop", "gw"].spec.listeners
    (first, _) = caplog.records
    assert first.ebpflb_fields["object"] == "Gateway shop/gw"
    assert "spec" in first.ebpflb_fields["error"]
    documents = (broken(gateway()), gateway(name="other"), broken(gateway(name="new")))
    store.replace("Gateway", iter(map(as_item, documents)))
    assert list(store.found().gateways) == [("shop", "gw"), ("shop", "other")]


def test_a_list_that_breaks_off_changes_nothing():
    store = filled()

    def pieces():
        yield as_item(gateway(name="other"))
        raise SourceError("broken off")

    with pytest.raises(SourceError):
        store.replace("Gateway", pieces())
    assert list(store.found().gateways) == [("shop", "gw")]


def test_changes_are_signalled_and_deletions_too():
    store = filled()
    store.changed.clear()
    store.change("Service", as_item(service()), deleted=True)
    assert store.changed.is_set()
    assert not store.found().services
    store.change("Service", as_item(service()), deleted=True)


def test_what_cannot_be_followed_is_told(caplog):
    caplog.set_level("INFO")
    follower = _StoreFollower(filled(), "Gateway")
    follower.report("may not list gateways")
    follower.report("")
    assert [each.levelname for each in caplog.records] == ["WARNING", "INFO"]


def test_paths_are_those_of_the_api():
    assert KINDS["Gateway"].path(("a", "b")) == (
        "/apis/gateway.networking.k8s.io/v1/namespaces/a/gateways/b"
    )
    assert KINDS["GatewayClass"].path(("", "b")) == (
        "/apis/gateway.networking.k8s.io/v1/gatewayclasses/b"
    )
    assert KINDS["Service"].path(("a", "")) == "/api/v1/namespaces/a/services"
    assert KINDS["Service"].resource.name == "services"
    assert KINDS["EndpointSlice"].resource.name == "endpointslices.discovery.k8s.io"
