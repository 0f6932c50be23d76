# SPDX-License-Identifier: Apache-2.0
"""Health check node ports over real sockets."""

import http.client
import json
import socket
import threading
from contextlib import closing

import pytest

from ebpflb.errors import ProbeError
from ebpflb.model.address import Family
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.service import ServiceName
from ebpflb.observe.http.health_check_node_port import HealthCheckServer
from tests.ports import free_port, free_ports

WEB, API = ServiceName("shop", "web"), ServiceName("shop", "api")
LOOPBACK = {Family.IPV4: ["127.0.0.1"], Family.IPV6: ["::1"]}
BODY = (
    '{\n\t"service": {\n\t\t"namespace": "shop",\n\t\t"name": "web"\n\t},\n'
    '\t"localEndpoints": 2,\n\t"serviceProxyHealthy": true\n}'
)
SECONDS = 60


class Served:
    """A server, what it asks, and what a client reads there."""

    def __init__(self, http_server):
        self.healthy = True
        self.addresses = dict(LOOPBACK)
        self.asked = 0
        self.server = HealthCheckServer(http_server, lambda: self.healthy, self._resolve)

    def _resolve(self):
        self.asked += 1
        return self.addresses

    def show(self, port, four=2, six=None):
        counts = {Family.IPV4: four} | ({} if six is None else {Family.IPV6: six})
        return self.server.serve({WEB: HealthCheck(port, counts)})


@pytest.fixture
def served(http_server):
    made = Served(http_server)
    yield made
    made.server.stop()


@pytest.fixture
def port():
    return free_port()


def get(port, path="/", method="GET", host="127.0.0.1", **options):
    with closing(http.client.HTTPConnection(host, port, timeout=SECONDS)) as connection:
        connection.request(method, path, **options)
        found = connection.getresponse()
        return found.status, dict(found.getheaders()), found.read().decode()


def raw(port, *pieces):
    with socket.create_connection(("127.0.0.1", port), SECONDS) as client:
        for piece in pieces:
            client.sendall(piece)
        return b"".join(iter(lambda: client.recv(4096), b""))


def is_closed(port, host="127.0.0.1"):
    try:
        socket.create_connection((host, port), SECONDS).close()
    except ConnectionRefusedError:
        return True
    return False


def test_the_answer_is_kube_proxys_to_the_letter(served, port):
    assert served.show(port) == {}
    status, headers, body = get(port)
    assert status == 200
    assert body == BODY
    assert headers["Content-Type"] == "application/json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Load-Balancing-Endpoint-Weight"] == "2"


def test_without_a_local_endpoint_it_is_503_and_still_has_its_weight(served, port):
    served.show(port, four=0)
    status, headers, body = get(port)
    assert status == 503
    assert headers["X-Load-Balancing-Endpoint-Weight"] == "0"
    assert json.loads(body)["localEndpoints"] == 0


def test_a_proxy_that_is_not_healthy_is_503_whatever_it_has(served, port):
    served.healthy = False
    served.show(port)
    status, headers, body = get(port)
    assert status == 503
    assert headers["X-Load-Balancing-Endpoint-Weight"] == "2"
    assert json.loads(body)["serviceProxyHealthy"] is False
    assert json.loads(body)["localEndpoints"] == 2


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "OPTIONS", "BREW"])
def test_any_path_and_method(served, port, method):
    served.show(port)
    assert get(port, "/any/path?query", method, body="x" * 300_000)[::2] == (200, BODY)


def test_head_has_headers_alone(served, port):
    served.show(port)
    status, headers, body = get(port, method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["Content-Length"]) == len(BODY)


def test_a_new_count_needs_no_new_port(served, port):
    served.show(port)
    served.show(port, four=0)
    assert get(port)[0] == 503
    assert served.asked == 1


def test_each_family_has_its_own_port_and_count(served, port):
    served.show(port, four=0, six=3)
    assert get(port)[0] == 503
    status, headers, _ = get(port, host="::1")
    assert (status, headers["X-Load-Balancing-Endpoint-Weight"]) == (200, "3")
    served.show(port, four=0)
    assert is_closed(port, "::1")
    assert get(port)[0] == 503


def test_all_addresses_of_both_families_do_not_clash(served, port):
    served.addresses = {Family.IPV4: ["0.0.0.0"], Family.IPV6: ["::"]}
    assert served.show(port, four=1, six=0) == {}
    assert get(port)[0] == 200
    assert get(port, host="::1")[0] == 503


def test_a_service_that_is_gone_closes_its_port(served, port):
    served.show(port)
    served.server.serve({})
    assert is_closed(port)


def test_another_port_closes_the_old_one(served, port):
    served.show(port)
    other = free_port()
    served.show(other)
    assert is_closed(port)
    assert get(other)[0] == 200


def test_two_services_may_swap_their_ports(served, port):
    other = free_port()
    first, second = (HealthCheck(each, {Family.IPV4: 1}) for each in (port, other))
    assert served.server.serve({WEB: first, API: second}) == {}
    assert served.server.serve({WEB: second, API: first}) == {}
    assert json.loads(get(port)[2])["service"]["name"] == "api"


def test_a_port_in_use_is_reported_and_tried_again_at_the_next_sync(served, port):
    served.addresses = {Family.IPV4: ["127.0.0.2", "127.0.0.1"]}
    with socket.create_server(("127.0.0.1", port)):
        expected = {WEB: f"127.0.0.1:{port}: Address already in use"}
        assert served.show(port) == expected
        assert is_closed(port, "127.0.0.2")
        assert served.show(port) == expected
    assert served.show(port) == {}
    assert get(port, host="127.0.0.2")[0] == 200


def test_a_port_in_use_does_not_hold_up_other_services(served, port):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        checks = {
            API: HealthCheck(taken.getsockname()[1], {Family.IPV4: 1}),
            WEB: HealthCheck(port, {Family.IPV4: 1}),
        }
        assert list(served.server.serve(checks)) == [API]
    assert get(port)[0] == 200


def test_addresses_that_cannot_be_read_are_reported(served, port, monkeypatch):
    def fail():
        raise ProbeError("netlink failed")

    monkeypatch.setattr(served.server, "_addresses", fail)
    assert served.show(port) == {WEB: f"port {port}: netlink failed"}


def test_a_node_without_ipv6_serves_the_other_family(served, port, monkeypatch):
    monkeypatch.setattr(socket, "AF_INET6", 9999)
    assert served.show(port, six=1) == {}
    assert get(port)[0] == 200


def test_a_node_without_a_chosen_address_listens_once_it_has_one(served, port):
    served.addresses = {}
    assert served.show(port) == {}
    assert is_closed(port)
    served.addresses = LOOPBACK
    served.show(port)
    assert get(port)[0] == 200


@pytest.mark.parametrize("request_line", [b"\x16\x03\x01\x02", b"GET /"])
def test_what_is_no_request_gets_an_error(served, port, request_line):
    served.show(port)
    assert raw(port, request_line + b"\r\n\r\n").startswith(b"HTTP/1.1 400 ")


def test_hundreds_of_ports_need_no_thread(served):
    before = set(threading.enumerate())
    ports = free_ports(300)
    checks = {
        ServiceName("shop", f"web-{port}"): HealthCheck(port, {Family.IPV4: 1}) for port in ports
    }
    assert served.server.serve(checks) == {}
    assert not set(threading.enumerate()) - before
    assert all(get(each)[0] == 200 for each in ports)


def test_stopping_closes_all_ports(served, port):
    served.show(port)
    with socket.create_connection(("127.0.0.1", port), SECONDS):
        served.server.stop()
    assert is_closed(port)
