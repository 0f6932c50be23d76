# SPDX-License-Identifier: Apache-2.0
"""Which API server is used: the configured ones, discovered ones, and remembered ones."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from ebpflb.errors import SourceError
from ebpflb.model.address import Family, Protocol, SocketAddress, format_address, parse_address
from ebpflb.model.endpoint import Endpoint, EndpointSlice, PackedEndpoints, SlicePort
from ebpflb.source.api import Api, ApiRequest, RefusedError
from ebpflb.source.api_servers import ApiServers, listed_servers
from ebpflb.source.interface import SourceEvent
from tests.builders import service
from tests.unit.source.api_server import ApiServer, answer

THINGS = ApiRequest("/api/v1/things", "things", {})
FIRST, SECOND, THIRD = (f"https://192.0.2.{number}:6443" for number in (1, 2, 3))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with closing(ApiServer()) as server:
        yield server


@pytest.fixture
def nobody() -> Iterator[str]:
    """The URL of an unused port, at any address of the loopback."""
    with socket.socket() as taken:
        taken.bind(("", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def urls(servers: ApiServers) -> list[str]:
    """In the order in which they are tried."""
    found = []
    for _ in range(len(servers)):
        found.append(servers.current.url)
        servers.move_on(servers.current)
    return found


def test_the_next_one_is_asked_when_one_does_not_answer(server: ApiServer, nobody: str):
    server.answers += [answer({"items": []}), answer({"items": []})]
    api = Api(None, nobody, others=[server.url])
    assert api.get(THINGS) == {"items": []}
    assert api.address == server.url
    api.post(THINGS)


def test_an_error_names_all_that_were_tried(nobody: str):
    other = nobody.replace("127.0.0.1", "127.0.0.2")
    with pytest.raises(SourceError) as caught:
        Api(None, nobody, others=[other]).get(THINGS)
    reasons = f"{nobody}: Connection refused; {other}: Connection refused"
    assert str(caught.value) == f"cannot reach any API server: {reasons}"


def test_one_that_cannot_work_is_not_asked_again(server: ApiServer):
    with closing(ApiServer(answer({"items": []}))) as other:
        server.answers.append(answer({"message": "etcd is away"}, 503))
        api = Api(None, server.url, others=[other.url])
        with pytest.raises(RefusedError, match="503 etcd is away"):
            api.get(THINGS)
        assert api.get(THINGS) == {"items": []}


def test_one_that_refuses_the_request_is_asked_again(server: ApiServer, nobody: str):
    server.answers += [answer({"message": "no"}, 403), answer({"items": []})]
    api = Api(None, server.url, others=[nobody])
    with pytest.raises(RefusedError):
        api.get(THINGS)
    assert api.get(THINGS) == {"items": []}


def test_configured_ones_come_first_and_each_once(tmp_path: Path):
    servers = ApiServers([FIRST, SECOND, FIRST], tmp_path)
    servers.learn([SECOND, THIRD])
    assert urls(servers) == [FIRST, SECOND, THIRD]


def test_learnt_ones_are_known_by_the_name_in_every_certificate(tmp_path: Path):
    servers = ApiServers([FIRST], tmp_path)
    servers.learn([FIRST, SECOND])
    assert servers.current == (FIRST, "")
    servers.move_on(servers.current)
    assert servers.current == (SECOND, "kubernetes.default.svc")


def test_only_the_first_of_two_failures_moves_on():
    servers = ApiServers([FIRST, SECOND, THIRD])
    failed = servers.current
    servers.move_on(failed)
    servers.move_on(failed)
    assert servers.current.url == SECOND


def test_what_was_learnt_is_remembered_for_the_same_configuration(tmp_path: Path):
    memory = tmp_path / "cache"
    ApiServers([FIRST], memory).learn([FIRST, SECOND])
    assert urls(ApiServers([FIRST], memory)) == [FIRST, SECOND]
    assert urls(ApiServers([THIRD], memory)) == [THIRD]


def insecure(url: str, folder: Path, *, skips: bool) -> Path:
    """A kubeconfig that wants certificates checked or not."""
    cluster = {"server": url, "insecure-skip-tls-verify": skips}
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(content))
    return path


def test_without_verified_certificates_no_learnt_server_gets_the_token(
    tmp_path: Path, server: ApiServer, nobody: str
):
    memory = tmp_path / "memory"
    ApiServers([nobody], memory).learn([server.url.replace("http", "https")])
    (file,) = memory.iterdir()
    before = file.read_bytes()
    api = Api(insecure(nobody, tmp_path, skips=True), "", memory=memory)
    api.learn([SECOND])
    with pytest.raises(SourceError, match=r"\Acannot reach the API server at \S+: Connection"):
        api.get(THINGS)
    assert file.read_bytes() == before
    assert server.requests == []


def test_a_kubeconfig_that_no_longer_verifies_certificates_forgets_learnt_servers(
    tmp_path: Path, nobody: str
):
    api = Api(insecure(nobody, tmp_path, skips=False), "", memory=tmp_path)
    api.learn([FIRST, SECOND])
    assert len(ApiServers([nobody], tmp_path)) == 3
    insecure(nobody, tmp_path, skips=True)
    failures = []
    for _ in range(2):
        with pytest.raises(SourceError) as caught:
            api.get(THINGS)
        failures.append(str(caught.value))
    assert failures[-1] == f"cannot reach the API server at {nobody}: Connection refused"
    insecure(nobody, tmp_path, skips=False)
    with pytest.raises(SourceError):
        api.get(THINGS)
    api.learn([FIRST])
    assert len(ApiServers([nobody], tmp_path)) == 2


def test_an_empty_list_and_one_that_is_the_same_change_nothing(tmp_path: Path):
    servers = ApiServers([FIRST], tmp_path)
    servers.learn([FIRST, SECOND])
    servers.move_on(servers.current)
    servers.learn([])
    servers.learn([SECOND, FIRST])
    assert servers.current.url == SECOND
    servers.learn([THIRD])
    assert urls(servers) == [FIRST, THIRD]


@pytest.mark.parametrize("text", ["", "{", "{}", '[1, "http://192.0.2.9", "file:///etc/passwd"]'])
def test_a_memory_that_makes_no_sense_is_none(tmp_path: Path, text: str):
    ApiServers([FIRST], tmp_path).learn([SECOND])
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert urls(ApiServers([FIRST], tmp_path)) == [FIRST]


def test_a_place_that_cannot_be_written_is_no_end():
    servers = ApiServers([FIRST], Path("/proc/nothing"))
    servers.learn([SECOND])
    assert urls(servers) == [FIRST, SECOND]


def test_an_address_that_overrides_all_others_is_the_only_one(tmp_path: Path, nobody: str):
    api = Api(None, nobody, memory=tmp_path)
    api.learn([SECOND])
    with pytest.raises(SourceError, match=r"cannot reach the API server at \S+: Connection"):
        api.get(THINGS)
    assert not list(tmp_path.iterdir())


def piece(namespace: str, name: str, port: str, *addresses: str) -> EndpointSlice:
    endpoints = tuple(Endpoint(parse_address(address)) for address in addresses)
    ports = (SlicePort(port, Protocol.TCP, 6443),)
    return EndpointSlice(
        namespace, f"{name}-1", name, Family.IPV4, ports, PackedEndpoints(endpoints)
    )


def test_the_api_servers_are_the_endpoints_of_their_service():
    away = Endpoint(parse_address("192.0.2.9"), ready=False)
    ours = piece("default", "kubernetes", "https", "192.0.2.1", "2001:db8::1")
    ours = replace(ours, endpoints=PackedEndpoints([*ours.endpoints, away]))
    others = (
        piece("default", "web", "https", "192.0.2.4"),
        piece("other", "kubernetes", "https", "192.0.2.5"),
        piece("default", "kubernetes", "metrics", "192.0.2.6"),
    )
    event = SourceEvent((service(), ours, *others), (), {}, initial=True)
    assert listed_servers(event) == [FIRST, "https://[2001:db8::1]:6443"]


def test_configured_servers_are_known_by_their_addresses():
    given = [FIRST, "http://[fd00::1]", "https://192.0.2.9/base", "https://api.example:6443"]
    places = {(format_address(each.address), each.port) for each in ApiServers(given).configured}
    assert places == {("192.0.2.1", 6443), ("fd00::1", 80), ("192.0.2.9", 443)}
    assert Api(None, FIRST, others=["https://192.0.2.2:70000"]).configured == frozenset(
        {SocketAddress(parse_address("192.0.2.1"), 6443)}
    )
