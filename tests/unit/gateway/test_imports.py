# SPDX-License-Identifier: Apache-2.0
"""ServiceImports at an API server: what is written, and what is not."""

import pytest

from ebpflb.source.api import RefusedError
from tests.unit.gateway.fake_api import FakeApi
from tests.unit.gateway.settling import settled, slices
from tests.unit.gateway.world import Object, conditions, imported_slice, service, service_import

IPS = ["10.96.0.7", "fd00::7"]


@pytest.fixture
def api():
    """With a ServiceImport whose Service has got its addresses."""
    made = FakeApi(
        *(service_import(), imported_slice("10.1.0.1"), imported_slice("fd00:2::1")),
        imported_slice("10.2.0.1", cluster="east"),
    )
    settled(made)
    give_ips(made, IPS)
    settled(made)
    return made


def derived(api):
    """The name of its Service."""
    (name,) = [each for each in api.names("Service") if each.startswith("derived-")]
    return name


def give_ips(api, ips):
    found = api.at("Service", derived(api))
    api.set({**found, "spec": {**found["spec"], "clusterIPs": ips}})


def ready(api):
    return conditions(api.at("ServiceImport", "db")["status"])["Ready"]


def served(api):
    return sorted(each["addresses"][0] for piece in slices(api) for each in piece["endpoints"])


def test_it_is_served_and_has_the_addresses_of_its_service(api):
    assert api.at("ServiceImport", "db")["spec"]["ips"] == IPS
    assert ready(api) == ("True", "Ready")
    assert served(api) == ["10.1.0.1", "10.2.0.1", "fd00:2::1"]
    assert {each["metadata"]["labels"]["kubernetes.io/service-name"] for each in slices(api)} == {
        derived(api)
    }


def test_the_address_is_told_after_the_endpoints_are_there():
    api = FakeApi(service_import(), imported_slice("10.1.0.1"))
    settled(api)
    give_ips(api, IPS)
    settled(api)
    paths = [path for _, path in api.written]
    told = paths.index("/apis/multicluster.x-k8s.io/v1beta1/namespaces/shop/serviceimports/db")
    assert any("/endpointslices/derived-" in each for each in paths[:told])


def test_endpoints_follow_those_of_the_clusters(api):
    api.set(imported_slice("10.1.0.1", "10.1.0.2"))
    api.remove("EndpointSlice", ("shop", "db-east-ipv4"))
    settled(api)
    assert served(api) == ["10.1.0.1", "10.1.0.2", "fd00:2::1"]


def test_what_the_import_asks_for_changes_its_service(api):
    asked: Object = {
        "ipFamilies": ["IPv4"],
        "sessionAffinity": "ClientIP",
        "internalTrafficPolicy": "Local",
        "trafficDistribution": "PreferSameZone",
    }
    api.set(service_import(ips=IPS, **asked))
    settled(api)
    spec = api.at("Service", derived(api))["spec"]
    assert asked.items() <= spec.items()
    assert spec["ipFamilyPolicy"] == "SingleStack"
    assert spec["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": 10800}}
    api.set(service_import(ips=IPS))
    settled(api)
    spec = api.at("Service", derived(api))["spec"]
    assert (spec["sessionAffinity"], spec["internalTrafficPolicy"]) == ("None", "Cluster")
    assert {"sessionAffinityConfig", "trafficDistribution"}.isdisjoint(spec)


def test_a_service_that_somebody_deletes_comes_back_and_the_address_follows(api):
    api.remove("Service", ("shop", derived(api)))
    settled(api)
    assert api.at("ServiceImport", "db")["spec"]["ips"] == []
    assert ready(api) == ("False", "Pending")
    give_ips(api, ["10.96.0.8"])
    settled(api)
    assert api.at("ServiceImport", "db")["spec"]["ips"] == ["10.96.0.8"]
    assert ready(api) == ("True", "Ready")


def test_one_that_becomes_headless_loses_what_it_had(api):
    api.set(service_import(type="Headless"))
    settled(api)
    assert not api.names("Service")
    assert not slices(api)
    assert len(api.names("EndpointSlice")) == 3


def test_the_service_of_a_user_is_not_touched(api):
    name = derived(api)
    api.remove("Service", ("shop", name))
    mine = service(name)
    api.set(mine)
    settled(api)
    assert api.at("Service", name)["spec"] == mine["spec"]
    assert not slices(api)
    assert ready(api) == ("False", "Invalid")
    assert api.at("ServiceImport", "db")["spec"]["ips"] == []


def test_what_looks_like_its_own_in_another_namespace_stays(api):
    own = api.at("Service", derived(api))["metadata"]
    forged = service("forged", namespace="other")
    forged["metadata"] |= {name: own[name] for name in ("labels", "ownerReferences")}
    piece = imported_slice("10.9.9.9", name="forged", namespace="other")
    piece["metadata"] |= {
        "labels": slices(api)[0]["metadata"]["labels"],
        "ownerReferences": own["ownerReferences"],
    }
    for each in (forged, piece):
        api.set(each)
    settled(api)
    assert "forged" in api.names("Service")
    assert piece["metadata"]["name"] in api.names("EndpointSlice")


def test_one_that_the_api_server_refuses_says_so_and_costs_no_other(api):
    before = derived(api)
    refused = "/api/v1/namespaces/shop/services/derived-"
    api.refusals[refused] = RefusedError("spec.ports: Required value")
    api.set(service_import("empty", ports=[]))
    api.set(service_import("fine", namespace="other"))
    settled(api)
    told = conditions(api.at("ServiceImport", "empty")["status"])
    assert told["Ready"] == ("False", "Invalid")
    assert before in api.names("Service")
    assert len(api.names("Service")) == 2
    assert ready(api) == ("True", "Ready")


def test_one_that_is_deleted_leaves_the_rest_to_the_api_server(api):
    api.remove("ServiceImport", ("shop", "db"))
    before = len(api.written)
    settled(api)
    assert len(api.written) == before
