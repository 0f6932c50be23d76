# SPDX-License-Identifier: Apache-2.0
import copy
import json
import typing
from ipaddress import ip_network
from typing import Any

import msgspec
import pytest

from ebpflb.kubectl.services import FrontendOfCluster
from ebpflb.model.compact.frontends import FrontendName
from ebpflb.model.compact.rates import BACKEND_SUMS, SUMS
from ebpflb.model.connection import OpenConnection, connection_line
from ebpflb.model.flow import (
    BackendRate,
    Flow,
    FlowBackend,
    FlowClient,
    FlowFrontend,
    FlowService,
    ServiceRate,
    flow_line,
)
from ebpflb.relay.redaction import (
    A_NODE,
    ELSEWHERE,
    ClusterAddresses,
    NamespaceSight,
)

NODES = ("10.0.0.1", "192.0.2.10", "fd00::1")
PODS = (ip_network("10.244.0.0/16"), ip_network("fd00:10::/48"))
ADDRESSES = ClusterAddresses(frozenset(NODES), PODS, True)
OUTSIDE = "198.51.100.7"


def sight(*namespaces, nodes=False, addresses=ADDRESSES, namespace="shop") -> NamespaceSight:
    """Of a viewer who may list the pods of these namespaces; "" for all."""
    return NamespaceSight(namespace, lambda each: each in namespaces, nodes, addresses)


def flow(
    client=None, backend=None, namespace="shop", address="10.96.0.10", kind="ClusterIP"
) -> Flow:
    return Flow(
        time="2026-11-23T10:00:00.000000000Z",
        event="end",
        verdict="forwarded",
        protocol="TCP",
        path="socket",
        client=client,
        frontend=FlowFrontend(address=address, port=80, type=kind),
        service=FlowService(namespace=namespace, name="web"),
        backend=backend,
        seq=1,
        node="node-1",
    )


def client(address="10.244.1.9", pod="", workload="") -> FlowClient:
    return FlowClient(address=address, port=40000, pod=pod, workload=workload)


def backend(address="10.244.1.2", pod="shop/web-1", workload="Deployment/web") -> FlowBackend:
    found = {"address": address, "pod": pod, "workload": workload, "node": "node-2", "zone": "a"}
    return FlowBackend(port=8080, local=False, **found)


def seen_client(given, *namespaces, **more) -> FlowClient:
    found = sight(*namespaces, **more).flow(flow(given))
    assert found
    assert found.client
    return found.client


def seen_backend(given, *namespaces, **more) -> FlowBackend:
    found = sight(*namespaces, **more).flow(flow(backend=given))
    assert found
    assert found.backend
    return found.backend


HIDDEN = FlowClient(address="", pod=ELSEWHERE)


@pytest.mark.parametrize("namespace", ["bank", "shop-test", "sho", "Shop", "shop/web", ""])
def test_what_is_of_another_namespace_is_not_shown(namespace):
    everything = sight("", "shop", "bank", nodes=True)
    assert everything.flow(flow(client(), namespace=namespace)) is None
    assert (
        everything.connection(connection(service=FlowService(namespace=namespace, name="web")))
        is None
    )
    assert everything.rate(rate(namespace=namespace)) is None
    assert everything.frontend(frontend(namespace=namespace)) is None


def test_what_is_of_no_known_service_is_not_shown():
    unknown = msgspec.structs.replace(flow(client()), service=None)
    assert sight("", nodes=True).flow(unknown) is None
    assert sight("", nodes=True).connection(connection(service=None)) is None


@pytest.mark.parametrize(
    ("pod", "namespaces"),
    [
        ("shop/curl", ()),
        ("bank/teller", ("bank",)),
        (f"shop/{ELSEWHERE}", ()),
        (f"shop/{A_NODE}", ()),
        # Not NAMESPACE/NAME: of any namespace.
        ("shop", ("",)),
        ("bank/teller/1", ("",)),
    ],
)
def test_clients_that_the_viewer_may_know(pod, namespaces):
    given = client(pod=pod, workload="Deployment/teller")
    assert seen_client(given, *namespaces) == given


@pytest.mark.parametrize(
    ("pod", "namespaces"),
    [
        ("bank/teller", ()),
        ("bank/teller", ("ban", "bank-test", "teller", "bank/teller")),
        ("shop-test/curl", ()),
        ("sho/curl", ()),
        ("Shop/curl", ()),
        ("shop", ("shop",)),
        ("/curl", ("shop",)),
        ("shop/", ("shop",)),
        ("shop/bank/teller", ("shop", "bank")),
        ("/shop/curl", ("shop",)),
        (ELSEWHERE, ()),
        (A_NODE, ()),
    ],
)
@pytest.mark.parametrize("address", ["10.244.1.9", OUTSIDE, NODES[0], "nonsense", ""])
def test_clients_that_it_may_not_know(pod, namespaces, address):
    given = client(address, pod, "Deployment/teller")
    assert seen_client(given, *namespaces, nodes=True) == HIDDEN


@pytest.mark.parametrize(
    "address", ["10.0.0.1", "::ffff:10.0.0.1", "::FFFF:a00:1", "FD00:0::1", "fd00::1%eth0"]
)
def test_a_node_is_one_however_its_address_is_written(address):
    assert seen_client(client(address)) == FlowClient(address="", port=40000, pod=A_NODE)
    assert seen_client(client(address), nodes=True) == client(address)


def test_a_pod_in_the_host_network_has_its_name_but_not_the_nodes_address():
    given = client("10.0.0.1", "bank/teller", "DaemonSet/teller")
    assert seen_client(given, "bank") == msgspec.structs.replace(given, address="")
    assert seen_client(given, "bank", nodes=True) == given
    assert seen_client(given, nodes=True) == HIDDEN


@pytest.mark.parametrize(
    "address",
    ["10.244.1.9", "::ffff:10.244.1.9", "FD00:10::9", "fd00:10::9%eth0", "nonsense", "1.2.3"],
)
def test_an_address_of_an_unknown_pod_is_hidden(address):
    given = client(address)
    assert seen_client(given) == HIDDEN
    assert seen_client(given, "bank", nodes=True) == HIDDEN
    assert seen_client(given, "") == given


@pytest.mark.parametrize(
    "address", [OUTSIDE, "10.0.0.12", "10.245.0.1", "8.8.8.8", "fd00::12", "2606:4700::1"]
)
def test_a_client_outside_is_told(address):
    assert seen_client(client(address)) == client(address)


@pytest.mark.parametrize(
    ("address", "is_told"),
    [("10.245.0.1", False), ("100.64.0.1", False), ("fd01::1", False), ("8.8.8.8", True)],
)
def test_any_private_address_may_be_a_pods_where_not_all_nodes_tell(address, is_told):
    partly = ADDRESSES._replace(are_complete=False)
    assert seen_client(client(address), addresses=partly) == (
        client(address) if is_told else HIDDEN
    )
    # As long as no node tells of this family.
    other = tuple(each for each in PODS if (each.version == 6) != (":" in address))
    of_other_family = ADDRESSES._replace(pod_cidrs=other)
    assert (seen_client(client(address), addresses=of_other_family) == client(address)) is is_told


def test_a_client_may_be_unknown():
    assert seen_client(client("")) == client("")
    found = sight().flow(flow())
    assert found
    assert found.client is found.backend is None


def test_a_workload_without_a_pod_is_of_any_namespace():
    assert seen_client(client(OUTSIDE, workload="Deployment/teller")) == client(OUTSIDE)
    assert seen_client(client("10.0.0.1", workload="Deployment/teller")).workload == ""


def test_backends_that_the_viewer_may_know():
    assert seen_backend(backend()) == backend()
    assert seen_backend(backend(pod="bank/db"), "bank") == backend(pod="bank/db")
    host = backend("10.0.0.1")
    assert seen_backend(host) == msgspec.structs.replace(host, address="")


def test_a_hidden_backend_leaves_its_zone():
    assert seen_backend(backend(pod="bank/db")) == FlowBackend(address="", pod=ELSEWHERE, zone="a")
    assert seen_backend(backend(pod="", workload="")) == FlowBackend(
        address="", pod=ELSEWHERE, zone="a"
    )
    node = FlowBackend(address="", port=8080, pod=A_NODE, zone="a")
    assert seen_backend(backend("fd00::1", "", "")) == node
    outside = backend(OUTSIDE, "", "")
    assert seen_backend(outside) == outside


@pytest.mark.parametrize(
    ("address", "kind", "is_shown"),
    [
        ("10.96.0.10", "ClusterIP", True),
        ("192.0.2.80", "LoadBalancer", True),
        ("10.0.0.1", "NodePort", False),
        ("::ffff:10.0.0.1", "NodePort", False),
        ("10.0.0.1", "ExternalIP", False),
        ("10.0.0.1", "", False),
        ("172.16.0.1", "NodePort", False),
        ("0.0.0.0", "NodePort", True),
        ("::", "NodePort", True),
        ("nonsense", "", False),
    ],
)
def test_addresses_of_nodes_at_which_services_are_reached(address, kind, is_shown):
    given = flow(address=address, kind=kind)
    found, all_told = sight().flow(given), sight(nodes=True).flow(given)
    assert found
    assert found.frontend.address == (address if is_shown else "")
    assert all_told == given
    listed = sight().frontend(frontend(address=address, type=kind))
    assert listed
    assert listed.name.address == (address if is_shown else "")


def connection(**fields) -> OpenConnection:
    plain = {"path": "tc", "protocol": "TCP", "state": "established", "node": "node-1"}
    known = {
        "client": client(pod="bank/teller"),
        "frontend": FlowFrontend(address="10.0.0.1", port=30080),
        "service": FlowService(namespace="shop", name="web"),
        "backend": backend(pod="bank/db"),
    }
    return OpenConnection(**plain | known | fields)


def test_connections_are_as_flows():
    found = sight().connection(connection())
    assert found == connection(
        client=HIDDEN,
        frontend=FlowFrontend(address="", port=30080),
        backend=FlowBackend(address="", pod=ELSEWHERE, zone="a"),
    )
    assert sight("bank", nodes=True).connection(connection()) == connection()
    unknown = sight().connection(connection(client=None))
    assert unknown
    assert unknown.client is None


# What a flow or a connection tells, no matter whose the client and the backend are: words, and
# what is of the Service or of the node that has recorded it. A field that is not here is hidden,
# or its class must be looked at again.
_OF_BOTH = {
    *("path", "protocol", "node", "frontend.port", "frontend.type", "backend.zone", "retransmits"),
    *("service.namespace", "service.name", "service.port", "bytes.original", "bytes.reply"),
}
TOLD: dict[type, set[str]] = {
    Flow: _OF_BOTH
    | {"time", "event", "verdict", "reason", "ended", "family", "source", "seconds", "seq", "id"}
    | {"policy.internal", "policy.external", "policy.affinity_timeout", "rtt_seconds"}
    | {"packets.original", "packets.reply", "snat", "hairpin"},
    OpenConnection: _OF_BOTH | {"state", "removed", "age", "idle"},
}
HIDDEN_FIELDS = {
    *("client.address", "client.port", "client.pod", "client.workload", "frontend.address"),
    *("backend.address", "backend.port", "backend.pod", "backend.workload", "backend.node"),
    "backend.local",
}


def fields_of(kind: Any) -> dict[str, Any]:
    """The type of each field, without None."""
    hints = typing.get_type_hints(kind)
    some = {name: typing.get_args(hints[name]) or (hints[name],) for name in hints}
    return {
        name: next(each for each in some[name] if each is not type(None))
        for name in kind.__struct_fields__
    }


def marked(kind: Any, path="") -> Any:
    """A struct, with those in it, whose texts are markers; nothing is as it is by default."""
    plain = {int: 7, float: 7.5, bool: True}
    return kind(
        **{
            name: marked(inner, f"{path}{name}.")
            if issubclass(inner, msgspec.Struct)
            else {str: f"<{path}{name}>", **plain}[inner]
            for name, inner in fields_of(kind).items()
        }
    )


def values(struct: Any, path="") -> dict[str, object]:
    found: dict[str, object] = {}
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, msgspec.Struct):
            found |= values(value, f"{path}{name}.")
        else:
            found[f"{path}{name}"] = value
    return found


@pytest.mark.parametrize(
    ("kind", "line"), [(Flow, flow_line), (OpenConnection, connection_line)], ids=["flow", "open"]
)
@pytest.mark.parametrize(
    "hide",
    [
        {"client.pod": "bank/<client.pod>", "backend.pod": "bank/<backend.pod>"},
        {"client.pod": "", "backend.pod": ""},
        {
            "client.pod": "",
            "backend.pod": "",
            "client.address": NODES[0],
            "backend.address": NODES[2],
        },
    ],
    ids=["pods", "addresses", "nodes"],
)
def test_nothing_survives_of_who_is_hidden(kind, line, hide):
    given: Any = marked(kind)
    given.service.namespace = "shop"
    for path, value in {**hide, "frontend.address": "10.0.0.1"}.items():
        part, _, name = path.partition(".")
        setattr(getattr(given, part), name, value)
    assert values(given).keys() == TOLD[kind] | HIDDEN_FIELDS, (
        "a field of which this test does not know"
    )
    before = copy.deepcopy(given)
    look = sight().flow if kind is Flow else sight().connection
    found: Any = look(given)
    assert given == before
    seen, known = values(found), values(given)
    told = {each for each in seen if seen[each] == known[each]}
    assert told - {"client.port", "backend.port"} == TOLD[kind]
    assert ("client.port" in told) is (hide.get("client.address") == NODES[0])
    encoded = line(found).decode()
    for path in HIDDEN_FIELDS:
        assert f"<{path}>" not in encoded
    assert not any(each in encoded for each in NODES)


def rate_backend(address="10.244.1.2", pod="shop/web-1", **fields) -> BackendRate:
    plain = {"local": False, "terminating": False, "offered": True, "active": 1, "share": 0.5}
    state = {"trouble": "starved", "ejection": "unwatched", **dict.fromkeys(BACKEND_SUMS, 1.0)}
    return BackendRate(**{"address": address, "port": 8080, "pod": pod, **state, **plain, **fields})


def rate(*backends, troubles=(), namespace="shop") -> ServiceRate:
    numbers: dict[str, Any] = {**dict.fromkeys(SUMS, 1.0), "active": 1}
    return ServiceRate(
        namespace=namespace,
        service="web",
        port="http",
        protocol="TCP",
        **numbers,
        endpoints=len(backends),
        largest_share=0.5,
        even_share=0.5,
        cross_node_share=0.5,
        troubles=troubles,
        backends=backends,
    )


def seen_rate(given, *namespaces, **more) -> ServiceRate:
    found = sight(*namespaces, **more).rate(given)
    assert found
    return found


def test_rates_of_backends_that_the_viewer_may_know():
    given = rate(
        rate_backend(),
        rate_backend("10.244.1.3", "bank/db"),
        rate_backend("10.0.0.1", ""),
        rate_backend(OUTSIDE, ""),
        troubles=("no local endpoint", "bank/db answers nobody (2 nodes)", "10.0.0.1 starved"),
    )
    assert seen_rate(given, "bank", nodes=True) == given


def test_rates_keep_the_numbers_of_hidden_backends():
    given = rate(
        rate_backend(),
        rate_backend("10.244.1.3", "bank/db"),
        rate_backend("10.244.1.4", ""),
        rate_backend("10.0.0.1", ""),
        rate_backend("fd00::1", "shop/host"),
    )
    assert seen_rate(given) == rate(
        rate_backend(),
        rate_backend("", ELSEWHERE, port=0),
        rate_backend("", ELSEWHERE, port=0),
        rate_backend("", A_NODE),
        rate_backend("", "shop/host"),
    )


@pytest.mark.parametrize(
    ("trouble", "shown"),
    [
        ("no endpoint", "no endpoint"),
        ("3 of 4 connections on removed pods", "3 of 4 connections on removed pods"),
        ("shop/web-1 gets nothing", "shop/web-1 gets nothing"),
        ("10.244.1.2 gets nothing", "10.244.1.2 gets nothing"),
        ("bank/db answers nobody (2 nodes)", f"{ELSEWHERE} answers nobody (2 nodes)"),
        ("new pod bank/db idle", f"new pod {ELSEWHERE} idle"),
        ("10.244.1.3 refuses connections", f"{ELSEWHERE} refuses connections"),
        ("fd00::1 starved", "shop/host starved"),
        ("10.0.0.1 starved", f"{A_NODE} starved"),
        # Of a backend that is gone.
        ("bank/old starved", f"{ELSEWHERE} starved"),
        ("shop/old starved", "shop/old starved"),
        ("10.244.9.9 starved", f"{ELSEWHERE} starved"),
        ("192.0.2.10:8080 starved", f"{A_NODE}:8080 starved"),
        (f"{OUTSIDE} starved", f"{OUTSIDE} starved"),
        ("teller starved", f"{ELSEWHERE} starved"),
    ],
)
def test_troubles_name_nobody_who_is_hidden(trouble, shown):
    backends = rate_backend(), rate_backend("10.244.1.3", "bank/db"), rate_backend("10.0.0.1", "")
    others = rate_backend("fd00::1", "shop/host"), rate_backend("10.244.1.5", "teller")
    assert seen_rate(rate(*backends, *others, troubles=(trouble,))).troubles == (shown,)


def frontend(backends=(), differences=(), ranges=(), **fields) -> FrontendOfCluster:
    name = FrontendName("shop", "web", "http", "ClusterIP", "TCP", "10.96.0.10", 80)
    settings = {"scheduler": "random", "dsr": False, "affinity_timeout": 0, "source_ranges": ranges}
    numbers = {"connections": 3, "failed": 0, "refused": 0, "dropped": 0}
    outside = {"served": ["node-1"]}
    return FrontendOfCluster(
        name._replace(**fields),
        settings,
        numbers,
        dict(backends),
        outside,
        ["node-2"],
        dict(differences),
    )


def test_frontends_of_the_namespace_without_addresses_of_nodes():
    given = frontend(
        {"10.0.0.1:80": 3, "10.0.0.12:80": 2, "192.0.2.10:80": 1, "[fd00::1]:80": 4},
        {"lacks 10.0.0.1:80": ["b", "c"], "lacks 192.0.2.10:80": ["a", "b"], "dsr is True": ["d"]},
        ("10.0.0.1/32", "192.0.2.0/24"),
    )
    before = copy.deepcopy(given)
    assert sight(nodes=True).frontend(given) == given
    assert sight().frontend(given) == frontend(
        {"a node:80": 3, "10.0.0.12:80": 2, "a node:80 (2)": 1, "[a node]:80": 4},
        {"lacks a node:80": ["a", "b", "c"], "dsr is True": ["d"]},
        ("a node/32", "192.0.2.0/24"),
    )
    assert given == before


def test_lines_can_be_read_again():
    found = sight().flow(flow(client(pod="bank/teller"), backend(pod="bank/db")))
    assert found
    assert json.loads(flow_line(found))["client"] == {"address": "", "pod": ELSEWHERE}
