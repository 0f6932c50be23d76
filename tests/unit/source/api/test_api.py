# SPDX-License-Identifier: Apache-2.0
"""Requests to a web server that may refuse, break off or fall silent."""

import json
import socket
import threading
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from urllib3.exceptions import InsecureRequestWarning

from ebpflb import __version__
from ebpflb.errors import ConfigError, SourceError
from ebpflb.source.api import (
    Api,
    ApiRequest,
    BrokenError,
    ConflictError,
    ExpiredError,
    MissingError,
    RefusedError,
)
from ebpflb.source.api_objects import WatchEvent, object_of
from ebpflb.source.api_types import Fields
from tests.unit.source.api_server import Answer, ApiServer, answer
from tests.unit.source.scripted import SECONDS

THINGS = ApiRequest("/api/v1/things", "things", {"labelSelector": "!hidden", "limit": "500"})
POD = "kubernetes.config.incluster_config"
UNREACHABLE = "http://127.0.0.1:1"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def api(server: ApiServer) -> Api:
    """Knows where the server is, and needs no credentials."""
    return Api(None, server.url)


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Callable[..., Path]:
    """Writes a kubeconfig with one user."""

    def write(url: str, **user: Any) -> Path:
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "here",
            "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "users": [{"name": "u", "user": user}],
        }
        path = tmp_path / "kubeconfig"
        path.write_text(yaml.safe_dump(content))
        return path

    return write


def added(*numbers: int) -> bytes:
    """Lines of a watch."""
    objects = [{"type": "ADDED", "object": {"n": number}} for number in numbers]
    return b"".join(json.dumps(each).encode() + b"\n" for each in objects)


def event(number: int) -> tuple[str, Fields]:
    return "ADDED", {"n": number}


def read(found: WatchEvent) -> tuple[str, Fields]:
    return found.kind, object_of(found.item.raw)


def watched(api: Api, silence: float = 10.0) -> list[tuple[str, Fields]]:
    return list(map(read, api.watch(THINGS, silence)))


def test_an_object_is_got_with_the_query(api: Api, server: ApiServer):
    server.answers.append(answer({"items": []}))
    assert api.get(THINGS) == {"items": []}
    (request,) = server.requests
    assert (request.method, request.path) == ("GET", "/api/v1/things")
    assert request.query == {"labelSelector": ["!hidden"], "limit": ["500"]}
    assert request.headers["Accept"] == "application/json"
    assert request.headers["User-Agent"] == f"ebpflb/{__version__}"
    assert "Authorization" not in request.headers


def test_an_object_is_posted_as_json(api: Api, server: ApiServer):
    server.answers.append(answer({}, 201))
    api.post(ApiRequest("/events", "events", {}, {"note": "ä", "regarding": {"name": "web"}}))
    (request,) = server.requests
    assert (request.method, request.path) == ("POST", "/events")
    assert request.headers["Content-Type"] == "application/json"
    assert json.loads(request.body) == {"note": "ä", "regarding": {"name": "web"}}


def test_an_object_is_changed_by_a_merge_patch(api: Api, server: ApiServer):
    server.answers.append(answer({}))
    api.patch(ApiRequest("/things/a/status", "things/status", {}, {"status": {"ready": None}}))
    (request,) = server.requests
    assert (request.method, request.path) == ("PATCH", "/things/a/status")
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(request.body) == {"status": {"ready": None}}


def test_an_object_is_deleted_if_it_is_the_one_that_is_meant(api: Api, server: ApiServer):
    server.answers.append(answer({}))
    api.delete(ApiRequest("/things/a", "things", {}, {"preconditions": {"uid": "1"}}))
    (request,) = server.requests
    assert (request.method, request.path) == ("DELETE", "/things/a")
    assert json.loads(request.body) == {"preconditions": {"uid": "1"}}


@pytest.mark.parametrize(
    ("verb", "status"), [("create", 409), ("patch", 409), ("patch", 404), ("delete", 404)]
)
def test_an_object_that_is_another_one_by_now_is_a_conflict(
    api: Api, server: ApiServer, verb: str, status: int
):
    server.answers.append(answer({"kind": "Status", "message": "another"}, status))
    with pytest.raises(ConflictError) as caught:
        ASK[verb](api)
    assert str(caught.value) == f"cannot {verb} things: {status} another"


def test_the_address_may_have_a_path(server: ApiServer):
    server.answers.append(answer({}))
    api = Api(None, f"{server.url}/clusters/one")
    api.get(THINGS)
    assert server.requests[0].path == "/clusters/one/api/v1/things"
    assert api.address == f"{server.url}/clusters/one"


def test_events_are_lines_however_they_are_cut(api: Api, server: ApiServer):
    whole = added(0, 1, 2)
    pieces = tuple(whole[at : at + 7] for at in range(0, len(whole), 7))
    server.answers.append(Answer(pieces=pieces))
    assert watched(api) == [event(0), event(1), event(2)]


def test_an_event_is_there_before_the_watch_ends(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(added(1) + b'{"n"',), end="silent"))
    events = api.watch(THINGS, 10)
    assert read(next(events)) == event(1)
    server.released.set()
    with pytest.raises(BrokenError):
        next(events)


def test_several_events_may_come_at_once_and_empty_lines_are_none(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(b"\n" + added(1, 2) + b"\r\n\n",)))
    assert watched(api) == [event(1), event(2)]


def test_half_a_line_at_the_end_is_not_an_event(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(added(1) + b'{"n": 2}',)))
    assert watched(api) == [event(1)]


def test_a_watch_that_is_cut_is_broken_after_what_had_come(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(added(1),), end="cut"))
    events = api.watch(THINGS, 10)
    assert read(next(events)) == event(1)
    with pytest.raises(BrokenError, match=r"\Acannot watch things: [^\n]+\Z"):
        next(events)


def test_who_waits_for_an_event_of_a_watch_can_be_told_to_end(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(added(1),), end="silent"))
    events = api.watch(THINGS, 2 * SECONDS)
    assert read(next(events)) == event(1)
    waiting = threading.Thread(target=list, args=(events,))
    waiting.start()
    events.cut()
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    events.cut()


def test_the_answer_is_asked_for_as_a_media_type(api: Api, server: ApiServer):
    server.answers += [answer({"items": []}), Answer()]
    some = THINGS._replace(accept="application/json;as=Some")
    list(api.items(some))
    list(api.watch(some, 10))
    assert [each.headers["Accept"] for each in server.requests] == 2 * [some.accept]


def test_a_watch_that_falls_silent_is_broken(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(added(1),), end="silent"))
    events = api.watch(THINGS, silence=0.05)
    assert read(next(events)) == event(1)
    with pytest.raises(BrokenError, match=r"\Acannot watch things: Read timed out\.\Z"):
        next(events)


def test_an_event_that_is_no_json_is_an_error(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(b"<html>\n",)))
    with pytest.raises(SourceError, match=r"\Acannot read things: line 1, column 1: Expecting"):
        watched(api)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"<html>", "cannot read things: line 1, column 1: Expecting value"),
        (b"", "cannot read things: line 1, column 1: Expecting value"),
        (b'{"a": 1', "cannot read things: line 1, column 8: Expecting"),
        (b"{} {}", "cannot read things: line 1, column 4: Extra data"),
        (b"[]", "cannot read things: must be an object"),
    ],
)
def test_an_answer_that_is_no_object_is_an_error(
    api: Api, server: ApiServer, raw: bytes, text: str
):
    server.answers.append(Answer(pieces=(raw,) if raw else ()))
    with pytest.raises(SourceError) as caught:
        api.get(THINGS)
    assert str(caught.value).startswith(text)


def test_an_answer_that_is_cut_is_an_error(api: Api, server: ApiServer):
    server.answers.append(Answer(pieces=(b"{",), end="cut"))
    with pytest.raises(SourceError, match=r"\Acannot read things: [^\n]+\Z"):
        api.get(THINGS)


UNKNOWN_USER = (
    "the API server does not accept these credentials: check the ServiceAccount's token or the "
    "kubeconfig (who are you?)"
)
MAY_NOT = "may not {0} things: the ClusterRole lacks the verb {0} on things (who are you?)"
ASK: dict[str, Callable[[Api], object]] = {
    "list": lambda api: api.get(THINGS),
    "watch": lambda api: api.watch(THINGS, 10),
    "create": lambda api: api.post(THINGS),
    "patch": lambda api: api.patch(THINGS),
    "delete": lambda api: api.delete(THINGS),
}


@pytest.mark.parametrize("verb", ASK)
@pytest.mark.parametrize(
    ("status", "text"),
    [
        (401, UNKNOWN_USER),
        (403, MAY_NOT),
        (429, "cannot {0} things: 429 who are you?"),
        (500, "cannot {0} things: 500 who are you?"),
    ],
)
def test_a_refusal_names_verb_and_resource_in_one_line(
    api: Api, server: ApiServer, verb: str, status: int, text: str
):
    server.answers.append(answer({"kind": "Status", "message": "who\n are  you?"}, status))
    with pytest.raises(RefusedError) as caught:
        ASK[verb](api)
    assert str(caught.value) == text.format(verb)


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_an_api_server_that_is_too_old_is_reported(api: Api, server: ApiServer, verb: str):
    server.answers.append(answer({"kind": "Status", "message": "no such thing"}, 404))
    text = "the API server does not have things: Kubernetes 1.21 or newer is needed (no such thing)"
    with pytest.raises(MissingError) as caught:
        ASK[verb](api)
    assert str(caught.value) == text


@pytest.mark.parametrize("verb", ["list", "watch"])
def test_a_forgotten_version_is_an_error_of_its_own(api: Api, server: ApiServer, verb: str):
    server.answers.append(answer({"kind": "Status", "message": "too old"}, 410))
    with pytest.raises(ExpiredError, match=r"\Athings: too old\Z"):
        ASK[verb](api)


@pytest.mark.parametrize(
    "refusal",
    [
        Answer(503, (b"<html>\n",)),
        Answer(503, (b"[1]",)),
        Answer(503, (b"3",)),
        Answer(503, (b"{}",)),
        Answer(503, (b"{",), end="cut"),
    ],
)
def test_a_refusal_without_a_message_has_the_name_of_its_status(
    api: Api, server: ApiServer, refusal: Answer
):
    server.answers.append(refusal)
    with pytest.raises(RefusedError, match=r"\Acannot list things: 503 Service Unavailable\Z"):
        api.get(THINGS)


def test_a_refused_request_does_not_spoil_the_next(api: Api, server: ApiServer):
    server.answers += [answer({}, 500), answer({"items": []})]
    with pytest.raises(RefusedError):
        api.get(THINGS)
    assert api.get(THINGS) == {"items": []}


@pytest.mark.parametrize("verb", ASK)
def test_a_server_that_is_not_there_is_named(verb: str):
    with pytest.raises(SourceError) as caught:
        ASK[verb](Api(None, UNREACHABLE))
    assert str(caught.value) == f"cannot reach the API server at {UNREACHABLE}: Connection refused"


def test_a_server_that_speaks_no_tls_is_an_error_in_one_line(server: ApiServer):
    url = server.url.replace("http", "https")
    with pytest.raises(SourceError, match=rf"\Acannot reach the API server at {url}: [^\n]+\Z"):
        Api(None, url).get(THINGS)


def test_an_odd_address_is_an_error_that_names_it():
    url = "http://two words"
    with pytest.raises(SourceError, match=rf"\Acannot reach the API server at {url}: [^\n]+\Z"):
        Api(None, url).get(THINGS)


def test_an_address_that_cannot_be_read_is_a_wrong_setting():
    with pytest.raises(ConfigError, match=r"\A--master http://\[::1: Invalid IPv6 URL\Z"):
        Api(None, "http://[::1")


def test_the_kubeconfig_says_where_and_who(server: ApiServer, kubeconfig: Callable[..., Path]):
    server.token = "secret"  # noqa: S105  of this test
    server.answers.append(answer({}))
    api = Api(kubeconfig(server.url, token="secret"), "")  # noqa: S106  of this test
    assert api.get(THINGS) == {}
    assert api.address == server.url


def test_an_address_that_is_given_goes_before_the_kubeconfigs(
    server: ApiServer, kubeconfig: Callable[..., Path]
):
    server.token = "secret"  # noqa: S105  of this test
    server.answers.append(answer({}))
    api = Api(kubeconfig(UNREACHABLE, token="secret"), server.url)  # noqa: S106  of this test
    assert api.get(THINGS) == {}


def test_a_token_that_was_replaced_is_read_again(
    server: ApiServer, kubeconfig: Callable[..., Path], tmp_path: Path
):
    file = tmp_path / "token"
    file.write_text("first")
    server.token = "first"  # noqa: S105  of this test
    server.answers += [answer({}), answer({}), answer({})]
    api = Api(kubeconfig(server.url, tokenFile=str(file)), "")
    api.get(THINGS)
    server.token = "second"  # noqa: S105  of this test
    file.write_text("second")
    with pytest.raises(RefusedError, match="does not accept"):
        api.get(THINGS)
    assert api.get(THINGS) == {}
    assert watched(api) == []


def test_a_kubeconfig_that_goes_away_later_is_no_end(
    server: ApiServer, kubeconfig: Callable[..., Path]
):
    path = kubeconfig(server.url)
    api = Api(path, "")
    server.answers += [answer({}, 500), answer({})]
    with pytest.raises(RefusedError):
        api.get(THINGS)
    text = path.read_text()
    path.unlink()
    with pytest.raises(SourceError, match=rf"\Acannot reach the API server: kubeconfig {path}: "):
        api.get(THINGS)
    path.write_text(text)
    assert api.get(THINGS) == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "No configuration found"),
        ("", "file is empty"),
        ("clusters: [", "while parsing a flow node"),
        ("- 1", "list indices must be integers"),
        ("hello", "'str' object"),
        ("kind: Config", "Expected key current-context"),
        ("current-context: a\ncontexts: 3", "'int' object is not iterable"),
        ("current-context: a\ncontexts: [{name: a, context: 3}]", "'int' object has no"),
        ("\x00", "unacceptable character"),
        ("a: " + "[" * 2000, "recursion"),
    ],
)
def test_a_wrong_kubeconfig_is_named(tmp_path: Path, text: str | None, reason: str):
    path = tmp_path / "kubeconfig"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        Api(path, "")
    line = str(caught.value)
    assert line.startswith(f"kubeconfig {path}: ")
    assert reason in line
    assert "\n" not in line


def test_who_does_not_want_certificates_checked_is_not_warned(
    kubeconfig: Callable[..., Path],
):
    path = kubeconfig("https://127.0.0.1:1")
    content = yaml.safe_load(path.read_text())
    content["clusters"][0]["cluster"]["insecure-skip-tls-verify"] = True
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(InsecureRequestWarning):
        warnings.warn("unchecked", InsecureRequestWarning, stacklevel=1)
    Api(path, "")
    warnings.warn("unchecked", InsecureRequestWarning, stacklevel=1)


def test_a_file_that_a_kubeconfig_lacks_is_named(kubeconfig: Callable[..., Path]):
    path = kubeconfig(UNREACHABLE, tokenFile="/no/token")
    with pytest.raises(ConfigError, match="No such file or directory: '/no/token'"):
        Api(path, "")


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, server: ApiServer) -> Path:
    """What Kubernetes mounts into a pod, but for TLS."""
    (tmp_path / "token").write_text("mounted")
    (tmp_path / "ca.crt").write_text("not looked at")
    host, port = server.url.removeprefix("http://").split(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr(f"{POD}.SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(f"{POD}.SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    return tmp_path


def test_a_pod_knows_where_the_server_is(pod: Path, server: ApiServer):
    assert Api(None, "").address == server.url.replace("http", "https")


def test_a_token_of_a_pod_that_is_gone_is_an_error_and_no_end(
    pod: Path, monkeypatch: pytest.MonkeyPatch
):
    at_once = SimpleNamespace(datetime=datetime, timedelta=lambda **_: timedelta(0))
    monkeypatch.setattr(f"{POD}.datetime", at_once)
    api = Api(None, "")
    (pod / "token").write_text("")
    with pytest.raises(SourceError, match=r"Token file exists but empty\.\Z"):
        api.get(THINGS)
    with pytest.raises(SourceError, match=r"pod, .*: Token file exists but empty\.\Z"):
        api.get(THINGS)


def test_outside_of_a_pod_something_must_be_given(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    text = r"\Anot in a pod, and no --kubeconfig: Service host/port is not set\.\Z"
    with pytest.raises(ConfigError, match=text):
        Api(None, "")


def test_options_of_sockets_are_set_before_they_connect(server: ApiServer):
    unknown = (socket.SOL_SOCKET, 9999, 1)
    with pytest.raises(SourceError, match="Protocol not available"):
        Api(None, server.url, socket_options=[unknown]).get(THINGS)
    server.answers.append(answer({"items": []}))
    keep_alive = (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    assert Api(None, server.url, socket_options=[keep_alive]).get(THINGS) == {"items": []}
