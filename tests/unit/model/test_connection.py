# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.from_json import JsonError
from ebpflb.model.connection import (
    BY,
    OpenConnection,
    WantedConnections,
    connection_line,
    read_connection,
    with_names,
)
from ebpflb.model.flow import FlowBackend, FlowClient, FlowFrontend, FlowService

VIP, POD, CLIENT = "10.96.0.1", "10.1.0.1", "10.1.0.9"
WEB = FlowService(namespace="shop", name="web", port="http")
NAMES = {POD: "shop/web-0", CLIENT: "home/curl", "10.0.0.1": ""}
WORKLOADS = {"home/curl": "Deployment/curl", "shop/web-0": "StatefulSet/web"}


def connection(client=CLIENT, backend=POD, service=WEB, **fields) -> OpenConnection:
    return OpenConnection(
        path="socket",
        protocol="TCP",
        state="established",
        client=FlowClient(address=client, port=4000) if client else None,
        frontend=FlowFrontend(address=VIP, port=80),
        service=service,
        backend=FlowBackend(address=backend, port=8080),
        **fields,
    )


def named(found: OpenConnection) -> OpenConnection:
    return with_names(found, NAMES, lambda pod: WORKLOADS.get(pod, ""))


def test_both_ends_get_the_names_of_their_pods():
    found = named(connection())
    assert found.client
    assert (found.client.pod, found.client.workload) == ("home/curl", "Deployment/curl")
    assert (found.backend.pod, found.backend.workload) == ("shop/web-0", "StatefulSet/web")


def test_an_end_without_a_name_has_its_address():
    for client in ("10.0.0.1", "198.51.100.7"):
        found = named(connection(client))
        assert found.client
        assert (found.client.pod, found.client.workload) == ("", "")
        assert (found.client_name, found.workload) == (client, client)


def test_a_connection_whose_client_is_not_known_has_the_name_of_its_backend():
    found = named(connection(client=None))
    assert found.client is None
    assert found.backend_name == "shop/web-0"
    assert (found.client_name, found.workload) == ("", "")


@pytest.mark.parametrize(
    ("by", "name"),
    [
        ("client", "home/curl"),
        ("workload", "home/Deployment/curl"),
        ("service", "shop/web"),
        ("backend", "shop/web-0"),
        ("node", "node-a"),
    ],
)
def test_connections_can_be_counted_by_what_they_share(by, name):
    assert BY[by](named(connection(node="node-a"))) == name


def test_without_names_addresses_count():
    found = connection(service=None)
    assert [BY[by](found) for by in ("client", "workload", "service", "backend")] == [
        *(CLIENT, CLIENT, VIP, POD)
    ]


@pytest.mark.parametrize(
    ("wanted", "is_one"),
    [
        (WantedConnections(), True),
        (WantedConnections(namespace="shop"), True),
        (WantedConnections(namespace="home"), False),
        (WantedConnections(service="shop/web"), True),
        (WantedConnections(service="shop/api"), False),
        (WantedConnections(source=CLIENT), True),
        (WantedConnections(source="home/curl"), True),
        (WantedConnections(source=POD), False),
        (WantedConnections(is_removed=True), False),
        (WantedConnections(older=60.0), True),
        (WantedConnections(older=61.0), False),
    ],
)
def test_conditions_must_all_hold(wanted, is_one):
    assert wanted.have(named(connection(age=60.0))) is is_one


def test_what_is_not_known_meets_no_condition():
    unknown = connection(client=None, service=None)
    assert not WantedConnections(namespace="shop").have(unknown)
    assert not WantedConnections(source=CLIENT).have(unknown)
    assert not WantedConnections(older=1.0).have(unknown)
    assert WantedConnections(is_removed=True).have(connection(removed=True))


def test_a_line_is_read_as_it_was_written():
    found = named(connection(age=1.5, removed=True))
    line = connection_line(found)
    assert line.endswith(b"\n")
    assert read_connection(line) == found


@pytest.mark.parametrize("line", ["", "[]", "{}", '{"path": 1}', b"\xff", "[" * 100_000])
def test_a_line_that_is_no_connection_is_an_error(line):
    with pytest.raises(JsonError):
        read_connection(line)
