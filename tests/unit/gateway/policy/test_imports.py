# SPDX-License-Identifier: Apache-2.0
"""What is made of a ServiceImport."""

import pytest

from ebpflb.gateway.policy.plan import plan
from tests.unit.gateway.world import (
    NOW,
    conditions,
    copies,
    endpoint_slice,
    found,
    imported_slice,
    planned,
    service,
    service_import,
    status,
)


def made_of(*objects):
    """The only Service that is planned, and its name."""
    (((_, name), wanted),) = planned(*objects).wanted.services.items()
    return name, wanted


def own(made, *ips):
    """The planned Service as the API server has it once it is written."""
    (wanted,) = made.wanted.services.values()
    metadata = {**wanted["metadata"], "uid": "own", "resourceVersion": "1"}
    return {**wanted, "metadata": metadata, "spec": {**wanted["spec"], "clusterIPs": list(ips)}}


def endpoints(*objects):
    return [
        each for piece in planned(*objects).wanted.slices.values() for each in piece["endpoints"]
    ]


def ready(made, name="db"):
    return conditions(status(made, "ServiceImport", name))["Ready"]


def test_its_service_has_its_ports_and_belongs_to_it():
    name, wanted = made_of(service_import(ports=[{"port": 80}, {"port": 53, "protocol": "UDP"}]))
    assert name.startswith("derived-")
    assert wanted["spec"] == {
        "type": "ClusterIP",
        "ipFamilyPolicy": "PreferDualStack",
        "sessionAffinity": "None",
        "sessionAffinityConfig": None,
        "internalTrafficPolicy": "Cluster",
        "trafficDistribution": None,
        "ports": [
            {"name": "", "protocol": "TCP", "port": 80},
            {"name": "", "protocol": "UDP", "port": 53},
        ],
    }
    assert wanted["metadata"]["labels"] == {
        "app.kubernetes.io/managed-by": "gateway.ebpflb.io",
        "multicluster.kubernetes.io/service-name": "db",
    }
    assert wanted["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "multicluster.x-k8s.io/v1beta1",
            "kind": "ServiceImport",
            "name": "db",
            "uid": "serviceimport-shop-db",
            "controller": True,
        }
    ]


@pytest.mark.parametrize(
    ("given", "policy", "families"),
    [
        ([], "PreferDualStack", None),
        (["IPv4", "IPv6"], "PreferDualStack", None),
        (["IPv6"], "SingleStack", ["IPv6"]),
        (["IPv4"], "SingleStack", ["IPv4"]),
    ],
)
def test_it_has_the_families_that_are_asked_for(given, policy, families):
    _, wanted = made_of(service_import(ipFamilies=given))
    assert wanted["spec"]["ipFamilyPolicy"] == policy
    assert wanted["spec"].get("ipFamilies") == families


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ({}, 10800),
        ({"sessionAffinityConfig": {}}, 10800),
        ({"sessionAffinityConfig": {"clientIP": {}}}, 10800),
        ({"sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}}}, 60),
    ],
)
def test_clients_stay_for_as_long_as_is_asked(config, seconds):
    _, wanted = made_of(service_import(sessionAffinity="ClientIP", **config))
    assert wanted["spec"]["sessionAffinity"] == "ClientIP"
    assert wanted["spec"]["sessionAffinityConfig"] == {"clientIP": {"timeoutSeconds": seconds}}


def test_policies_are_those_of_the_import_and_an_unknown_distribution_is_no_more_than_a_hint():
    _, wanted = made_of(
        service_import(internalTrafficPolicy="Local", trafficDistribution="PreferSameZone")
    )
    assert wanted["spec"]["internalTrafficPolicy"] == "Local"
    assert wanted["spec"]["trafficDistribution"] == "PreferSameZone"
    _, wanted = made_of(service_import(trafficDistribution="example.com/odd"))
    assert wanted["spec"]["trafficDistribution"] is None


def test_a_name_that_no_service_can_have_makes_one_that_can():
    names = {made_of(service_import(each))[0] for each in ("a" * 253, "a" * 252, "1.b", "a")}
    assert len(names) == 4
    assert {len(each) for each in names} == {24}
    _, wanted = made_of(service_import("a" * 62 + "." + "b" * 100))
    assert wanted["metadata"]["labels"]["multicluster.kubernetes.io/service-name"] == "a" * 62


def test_headless_ones_are_left_alone():
    made = planned(service_import(type="Headless", ips=["10.0.0.1"]), imported_slice("10.1.0.1"))
    assert not made.wanted.services
    assert not made.wanted.slices
    assert not made.ips
    assert [each.kind for each in made.statuses] == ["GatewayClass"]


@pytest.mark.parametrize("prefix", ["10.", "fd00::"])
def test_it_has_the_endpoints_of_all_clusters(prefix):
    west, east = f"{prefix}1", f"{prefix}2"
    another = imported_slice(f"{prefix}4", name="another")
    made = planned(
        *(service_import(), another),
        *(imported_slice(west), imported_slice(east, cluster="east")),
    )
    assert copies(made).keys() == {west, east}
    ((_, service_name),) = made.wanted.services
    piece = copies(made)[east]
    assert piece["addressType"] == ("IPv4" if prefix == "10." else "IPv6")
    assert piece["ports"] == [{"name": "main", "protocol": "TCP", "port": 9000}]
    assert piece["endpoints"] == [
        {"addresses": [east], "conditions": {"ready": True}, "zone": "east"}
    ]
    assert piece["metadata"]["labels"] == {
        "kubernetes.io/service-name": service_name,
        "endpointslice.kubernetes.io/managed-by": "gateway.ebpflb.io",
    }
    assert piece["metadata"]["namespace"] == "shop"


def test_only_ports_of_the_import_are_taken_and_slices_without_any_are_left_out():
    ports = [
        {"name": "main", "protocol": "UDP", "port": 1},
        {"name": "main", "port": 2},
        {"name": "main"},
        {"name": "metrics", "port": 3},
        {},
    ]
    mixed = imported_slice("10.1.0.1", ports=ports)
    useless = imported_slice("10.1.0.2", cluster="a", ports=ports[3:])
    empty = imported_slice("10.1.0.3", cluster="b", ports=None)
    named = imported_slice("10.1.0.4", cluster="c", addressType="FQDN")
    made = planned(service_import(), mixed, useless, empty, named)
    ((_, piece),) = copies(made).items()
    assert piece["ports"] == [{"name": "main", "protocol": "TCP", "port": 2}]


def test_a_port_without_a_name_is_found():
    piece = imported_slice("10.1.0.1", ports=[{"port": 9000, "protocol": "TCP"}])
    made = planned(service_import(ports=[{"port": 80}]), piece)
    (piece,) = copies(made).values()
    assert piece["ports"] == [{"name": "", "protocol": "TCP", "port": 9000}]


def test_a_copy_is_not_copied():
    copy = imported_slice("10.1.0.1")
    copy["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] = "gateway.ebpflb.io"
    assert not planned(service_import(), copy).wanted.slices


def test_a_slice_that_is_made_again_for_another_family_has_another_name():
    first, second = imported_slice("10.1.0.1"), imported_slice("fd00::1")
    second["metadata"]["name"] = first["metadata"]["name"]
    before = planned(service_import(), first).wanted.slices.keys()
    after = planned(service_import(), second).wanted.slices.keys()
    assert before.isdisjoint(after)


def test_nodes_count_where_the_own_service_has_the_endpoint_too():
    """A node of another cluster may have the name of one of this."""
    local = endpoint_slice("10.1.0.1", service="db")
    local["endpoints"][0]["targetRef"] = {"kind": "Pod", "name": "db-0"}
    ours, theirs = endpoints(service_import(), local, imported_slice("10.1.0.1", "10.1.0.2"))
    assert (ours["nodeName"], ours["targetRef"]["name"]) == ("node1", "db-0")
    assert {"nodeName", "targetRef"}.isdisjoint(theirs)


def test_nothing_of_another_namespace_counts():
    own = (service_import(), imported_slice("10.1.0.1"))
    local = endpoint_slice("10.1.0.1", service="db", namespace="other")
    theirs = imported_slice("10.1.0.2", namespace="other")
    service_name, _ = made_of(*own)
    mine = service(service_name, namespace="other", clusterIPs=["10.96.0.9"])
    assert endpoints(*own, local, theirs, mine) == endpoints(*own)
    assert planned(*own, local, theirs, mine).wanted == planned(*own).wanted


def test_zones_are_hinted_as_the_import_prefers_them():
    def hints(distribution):
        objects = (imported_slice("10.1.0.1", "10.1.0.2"), endpoint_slice("10.1.0.1", service="db"))
        return [
            each.get("hints")
            for each in endpoints(service_import(trafficDistribution=distribution), *objects)
        ]

    zone = {"forZones": [{"name": "west"}]}
    assert hints("PreferClose") == hints("PreferSameZone") == [zone, zone]
    assert hints("PreferSameNode") == [{**zone, "forNodes": [{"name": "node1"}]}, zone]
    assert hints("") == hints("example.com/odd") == [None, None]
    stray = {"addresses": ["10.1.0.1"], "hints": {"forZones": [{"name": "a"}]}}
    piece = imported_slice("10.1.0.1", endpoints=[stray])
    assert endpoints(service_import(trafficDistribution="PreferClose"), piece) == [
        {"addresses": ["10.1.0.1"]}
    ]


@pytest.mark.parametrize("odd", [None, 5, ["a", 5], [None]])
def test_endpoints_without_addresses_do_no_harm(odd):
    piece = imported_slice("10.1.0.1", endpoints=[{"addresses": odd}])
    local = endpoint_slice("10.1.0.1", service="db", endpoints=[{"addresses": odd}])
    assert len(endpoints(service_import(), piece, local)) == 1
    bare = imported_slice(endpoints=None)
    assert not endpoints(service_import(), bare, endpoint_slice(service="db", endpoints=None))


@pytest.mark.parametrize("ips", [["10.96.0.7"], ["fd00::7"], ["10.96.0.7", "fd00::7"]])
def test_it_has_the_addresses_of_its_service(ips):
    made = planned(service_import())
    assert ready(made) == ("False", "Pending")
    assert not made.ips
    given = own(made, *ips)
    made = planned(service_import(), given)
    assert made.ips == {("shop", "db"): ips}
    assert ready(made) == ("False", "Pending")
    made = planned(service_import(ips=ips), given)
    assert not made.ips
    assert ready(made) == ("True", "Ready")


def test_addresses_that_no_service_of_it_has_are_taken_away():
    made = planned(service_import(ips=["10.96.0.1"]))
    assert made.ips == {("shop", "db"): []}
    given = own(made, "None")
    assert planned(service_import(), given).ips == {}
    assert ready(planned(service_import(), given)) == ("False", "Pending")


@pytest.mark.parametrize(
    "head",
    [
        {},
        {
            "ownerReferences": [{"uid": "another"}],
            "labels": {"app.kubernetes.io/managed-by": "gateway.ebpflb.io"},
        },
        {"ownerReferences": [{"uid": "serviceimport-shop-db"}]},
    ],
)
def test_the_service_of_somebody_else_is_not_touched(head):
    theirs = service(made_of(service_import())[0], clusterIPs=["10.96.0.9"])
    theirs["metadata"] |= head
    made = planned(service_import(), theirs, imported_slice("10.1.0.1"), service_import("other"))
    assert len(made.wanted.services) == 1
    assert not made.wanted.slices
    assert not made.ips
    assert ready(made) == ("False", "Invalid")
    assert ready(made, "other") == ("False", "Pending")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("spec.ipFamilies[0]: Invalid value: IPv6: not configured", "IPFamilyNotSupported"),
        ("spec.ports: Required value", "Invalid"),
    ],
)
def test_what_the_api_server_refuses_is_told(text, reason):
    (key,) = planned(service_import()).wanted.services
    made = plan(found(service_import(), refusals={key: text}), (), NOW)
    assert ready(made) == ("False", reason)
    (told,) = status(made, "ServiceImport", "db")["conditions"]
    assert told["message"] == text
    assert key in made.wanted.services


def test_conditions_of_others_stay():
    item = service_import()
    since = "2025-01-01T00:00:00Z"
    theirs = {"type": "Synced", "status": "True", "reason": "a", "lastTransitionTime": since}
    item["status"] = {"conditions": [theirs]}
    told = status(planned(item), "ServiceImport", "db")
    assert conditions(told) == {"Synced": ("True", "a"), "Ready": ("False", "Pending")}
