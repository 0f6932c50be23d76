# SPDX-License-Identifier: Apache-2.0
"""The controller against an API server: what is written, and what is not."""

import logging
import threading

import pytest

from ebpflb.gateway.lease import Lease
from ebpflb.source.api import RefusedError
from tests.unit.gateway.fake_api import FakeApi
from tests.unit.gateway.settling import controller, settled, slices
from tests.unit.gateway.world import (
    addresses,
    backend,
    conditions,
    endpoint_slice,
    gateway,
    gateway_class,
    listener,
    route,
    service,
)

SERVICE = "gw-ebpflb"
SECONDS = 60


@pytest.fixture
def api():
    return FakeApi(
        *(gateway_class(), gateway(), service(), route(backend())),
        endpoint_slice("10.0.0.1"),
    )


def give_address(api, ip):
    path_to = api.at("Service", SERVICE)
    api.set({**path_to, "status": {"loadBalancer": {"ingress": [{"ip": ip}]}}})


def test_a_gateway_gets_its_service_and_endpoints_and_all_are_told(api):
    settled(api)
    assert api.at("Service", SERVICE)["spec"]["ports"][0]["port"] == 80
    (copy,) = slices(api)
    assert copy["endpoints"][0]["addresses"] == ["10.0.0.1"]
    assert conditions(api.at("GatewayClass", "ebpflb", "")["status"])["Accepted"][0] == "True"
    (parent,) = api.at("TCPRoute", "route")["status"]["parents"]
    assert set(conditions(parent).values()) == {("True", "Accepted"), ("True", "ResolvedRefs")}
    assert conditions(api.at("Gateway", "gw")["status"])["Programmed"][1] == "AddressNotAssigned"
    give_address(api, "203.0.113.9")
    settled(api)
    status = api.at("Gateway", "gw")["status"]
    assert conditions(status)["Programmed"] == ("True", "Programmed")
    assert status["addresses"] == [{"type": "IPAddress", "value": "203.0.113.9"}]


def test_what_is_there_is_not_written_again(api):
    made = settled(api)
    before = len(api.written)
    made.reconcile()
    assert len(api.written) == before


def test_endpoints_follow_those_of_the_backend(api):
    settled(api)
    api.set(endpoint_slice("10.0.0.1", "10.0.0.2"))
    settled(api)
    (copy,) = slices(api)
    assert [each["addresses"] for each in copy["endpoints"]] == [["10.0.0.1"], ["10.0.0.2"]]
    api.set(service("canary"))
    api.set(endpoint_slice("10.0.0.3", service="canary"))
    api.set(route(backend(weight=1), backend("canary", weight=1)))
    settled(api)
    given = [each["metadata"]["annotations"] for each in slices(api)]
    assert sorted(each["service.cilium.io/weight"] for each in given) == ["1", "2"]
    api.set(route(backend()))
    settled(api)
    (copy,) = slices(api)
    assert not copy["metadata"]["annotations"]
    api.remove("TCPRoute", ("shop", "route"))
    settled(api)
    assert not slices(api)
    assert api.at("EndpointSlice", "web-ipv4")


def test_a_drained_backend_is_never_alone(api):
    """Its endpoints would get all connections, as if there were no weights."""
    api.set(service("canary"))
    api.set(endpoint_slice("10.0.0.3", service="canary"))
    seen = []

    def look():
        given = [each["metadata"].get("annotations") or {} for each in slices(api)]
        seen.append(sorted(each.get("service.cilium.io/weight", "-") for each in given))

    api.on_write = look
    for weights in ((1, 0), (0, 1), (1, 0)):
        main, canary = weights
        api.set(route(backend(weight=main), backend("canary", weight=canary)))
        settled(api)
    api.set(endpoint_slice("10.0.0.1", ready=False))
    settled(api)
    api.set(route())
    settled(api)
    assert ["0", "1"] in seen
    assert ["0"] not in seen
    assert ["0", "0"] not in seen


def test_a_slice_whose_port_or_label_changes_is_written(api):
    settled(api)
    (copy,) = slices(api)
    copy["metadata"]["labels"]["kubernetes.io/service-name"] = SERVICE
    copy["ports"] = [{"name": "tcp-80", "protocol": "TCP", "port": 1}]
    api.set(copy)
    settled(api)
    assert slices(api)[0]["ports"][0]["port"] == 9000


def test_a_changed_gateway_changes_its_service(api):
    settled(api)
    wish = {"annotations": {"ebpflb.io/scheduler": "maglev"}}
    asked = addresses("203.0.113.1")
    api.set(gateway(listener(80), listener(53, "UDP"), addresses=asked, infrastructure=wish))
    settled(api)
    found = api.at("Service", SERVICE)
    assert found["spec"]["type"] == "ClusterIP"
    assert found["spec"]["externalIPs"] == ["203.0.113.1"]
    assert [each["name"] for each in found["spec"]["ports"]] == ["tcp-80", "udp-53"]
    assert found["metadata"]["annotations"]["ebpflb.io/scheduler"] == "maglev"
    api.set(
        {
            **found,
            "metadata": {
                **found["metadata"],
                "annotations": {**found["metadata"]["annotations"], "of": "others"},
            },
        }
    )
    api.set(gateway(addresses=asked))
    settled(api)
    assert api.at("Service", SERVICE)["metadata"]["annotations"] == {"of": "others"}


def test_labels_that_somebody_takes_away_come_back(api):
    settled(api)
    found = api.at("Service", SERVICE)
    del found["metadata"]["labels"]["gateway.networking.k8s.io/gateway-name"]
    api.set(found)
    settled(api)
    assert len(api.at("Service", SERVICE)["metadata"]["labels"]) == 2


def test_a_gateway_of_another_class_loses_what_it_had(api):
    settled(api)
    other = gateway()
    other["spec"]["gatewayClassName"] = "other"
    api.set(other)
    settled(api)
    assert api.names("Service") == ["web"]
    assert not slices(api)


def test_what_looks_like_ours_stays_unless_a_gateway_there_owns_it(api):
    ours = {"app.kubernetes.io/managed-by": "gateway.ebpflb.io"}
    forged = service("forged", namespace="other")
    forged["metadata"] |= {"labels": ours, "ownerReferences": [{"uid": "gateway-shop-gw"}]}
    orphan = service("orphan")
    orphan["metadata"] |= {"labels": ours, "ownerReferences": [{"uid": "gone"}]}
    bare = service("bare")
    bare["metadata"] |= {"labels": ours}
    for each in (forged, orphan, bare):
        api.set(each)
    settled(api)
    assert {"forged", "orphan", "bare"} <= set(api.names("Service"))


def test_the_service_and_the_slices_of_a_user_are_not_touched(api):
    mine = service(SERVICE)
    api.set(mine)
    settled(api)
    assert api.at("Service", SERVICE)["spec"] == mine["spec"]
    assert not slices(api)
    status = api.at("Gateway", "gw")["status"]
    assert conditions(status)["Programmed"] == ("False", "Invalid")


def test_a_slice_of_a_user_in_the_place_of_ours_stays(api):
    settled(api)
    (copy,) = slices(api)
    name = copy["metadata"]["name"]
    api.remove("EndpointSlice", ("shop", name))
    theirs = endpoint_slice("10.9.9.9")
    theirs["metadata"]["name"] = name
    api.set(theirs)
    settled(api)
    assert api.at("EndpointSlice", name)["endpoints"] == theirs["endpoints"]


def test_an_object_that_cannot_be_written_costs_no_other(api, caplog):
    refused = "/api/v1/namespaces/shop/services/gw-ebpflb"
    api.refusals[refused] = RefusedError("may not create services")
    api.set(gateway(name="second", namespace="other"))
    made = controller(api)
    made.reconcile()
    assert api.names("Service") == ["web", "second-ebpflb"]
    assert api.at("Gateway", "gw")["status"]
    (line,) = [each for each in caplog.records if each.levelno == logging.WARNING]
    assert line.ebpflb_fields["path"].endswith("/services")
    assert "may not create services" in line.ebpflb_fields["error"]
    made.reconcile()
    (programmed,) = [
        each
        for each in api.at("Gateway", "gw")["status"]["conditions"]
        if each["type"] == "Programmed"
    ]
    assert (programmed["reason"], programmed["message"]) == ("Invalid", "may not create services")
    del api.refusals[refused]
    made.reconcile()
    made.reconcile()
    assert conditions(api.at("Gateway", "gw")["status"])["Programmed"][1] == "AddressNotAssigned"
    assert api.at("Service", SERVICE)


def test_refusals_that_change_each_time_do_not_keep_it_busy(api):
    """Such as those of a webhook with an id: each is told in a condition, which is a change."""
    made = controller(api)
    assert made.pause == 0.1
    for number in range(8):
        refused = RefusedError(f"try again, request {number}")
        api.refusals["/api/v1/namespaces/shop/services/gw-ebpflb"] = refused
        made.reconcile()
    assert made.pause == 5.0
    api.refusals.clear()
    made.reconcile()
    made.reconcile()
    assert made.pause == 0.1


def test_without_the_lease_nothing_is_written(api):
    other = Lease(api, "own", "lease", "other")
    assert other.holds()
    before = list(api.written)
    controller(api).reconcile()
    assert api.written == before


def test_what_somebody_else_has_changed_meanwhile_is_looked_at_again(api, caplog):
    settled(api)
    found = api.store.found()
    api.set({**api.at("Gateway", "gw"), "spec": gateway(listener(81))["spec"]})
    api.store.found = lambda: found
    found.routes["TCPRoute"].clear()
    caplog.set_level(logging.DEBUG)
    made = controller(api)
    before = api.at("Gateway", "gw")
    made.reconcile()
    assert api.at("Gateway", "gw") == before
    assert "not written" in caplog.text
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


def test_who_waits_for_the_lease_takes_over_and_looks_at_everything(api, monkeypatch):
    monkeypatch.setattr("ebpflb.gateway.controller.RETRY_SECONDS", 0.01)
    monkeypatch.setattr("ebpflb.gateway.lease.RETRY_SECONDS", 0.01)
    other = Lease(api, "own", "lease", "other")
    assert other.holds()
    asked, told = threading.Event(), threading.Event()
    get = api.get

    def noted(request):
        asked.set()
        return get(request)

    def look():
        if any(path.endswith("gateways/gw/status") for _, path in api.written):
            told.set()

    api.get, api.on_write = noted, look
    made = controller(api)
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        assert asked.wait(SECONDS)
        assert not told.is_set()
        other.release()
        assert told.wait(SECONDS)
    finally:
        made.stop()
        thread.join(SECONDS)


def test_before_all_is_listed_nothing_is_written():
    api = FakeApi()
    del api.store._objects["Service"]
    api.set(gateway_class())
    controller(api).reconcile()
    assert not api.written


def test_it_runs_until_it_is_stopped_and_lets_go_of_the_lease(api):
    told = threading.Event()
    made = controller(api)

    def look():
        if any(path.endswith("gateways/gw/status") for _, path in api.written):
            told.set()

    api.on_write = look
    thread = threading.Thread(target=made.run)
    thread.start()
    try:
        assert told.wait(SECONDS)
    finally:
        made.stop()
        thread.join(SECONDS)
    assert not thread.is_alive()
    assert Lease(api, "own", "lease", "next").holds()
