# SPDX-License-Identifier: Apache-2.0
import http.client
import json
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ebpflb.errors import ConfigError, QueryError
from ebpflb.kubectl.ui.server import PageServer
from ebpflb.words.connections import FORWARDED, VERDICTS


def echo(given: Mapping[str, str]) -> Any:
    if given.get("wrong"):
        raise ConfigError("wrong: no")
    if given.get("gone"):
        raise QueryError("node1: no agent")
    return dict(given)


@pytest.fixture(scope="module")
def server():
    with PageServer({"echo": echo}) as made:
        yield made


def get(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.request(
        method, path, headers={name.replace("_", "-"): v for name, v in headers.items()}
    )
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer, body


def text(body):
    return json.loads(body)["error"]


def test_the_page_and_everything_it_loads(server):
    answer, body = get(server, f"/{server.token}/")
    assert answer.status == 200
    assert answer.getheader("Content-Type") == "text/html; charset=utf-8"
    assert b"<title>ebpflb" in body
    for name in server.static:
        assert get(server, f"/{server.token}/{name}")[0].status == 200


def test_the_page_offers_and_counts_the_verdicts_that_there_are(server):
    page = server.static["index.html"].decode()
    (choices,) = re.findall(r'<select name="verdict">(.*?)</select>', page, re.DOTALL)
    assert re.findall(r"<option>(\w+)", choices) == list(VERDICTS)
    (problems,) = re.findall(r"PROBLEMS = \[(.*)\]", server.static["format.js"].decode())
    assert [FORWARDED, *re.findall(r"\w+", problems)] == list(VERDICTS)


def test_parameters_reach_the_page(server):
    answer, body = get(server, f"/{server.token}/api/echo?a=1&b=%3Cimg%3E&c=")
    assert answer.getheader("Content-Type") == "application/json; charset=utf-8"
    assert json.loads(body) == {"a": "1", "b": "<img>"}


@pytest.mark.parametrize(
    "path", ["/", "/x/", "//", "/api/echo", "/x/api/echo", "/%C3%A9/", "/x/app.js", "//[x/", "x"]
)
def test_without_the_token_there_is_nothing(server, path):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        host = f"127.0.0.1:{server.port}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        assert answer.status == 403
        assert text(answer.read()).startswith("the token is missing or wrong")


def test_every_server_has_a_token_of_its_own(server):
    with PageServer({}) as other:
        assert other.token != server.token
        assert len(other.token) >= 32


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "", "0.0.0.0:{port}"]
)
def test_a_name_that_points_here_is_refused(server, host):
    answer, body = get(server, f"/{server.token}/", Host=host.format(port=server.port))
    assert answer.status == 403
    assert text(body) == "this page is served to this machine only"


def test_two_hosts_are_refused(server):
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        lines = [f"GET /{server.token}/ HTTP/1.1", f"Host: {server.hosts[0]}", "Host: evil.example"]
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def test_localhost_is_a_name_of_this_machine(server):
    host = f"localhost:{server.port}"
    assert get(server, f"/{server.token}/", Host=host)[0].status == 200


def test_nobody_else_may_embed_or_read_it(server):
    answer, _ = get(server, f"/{server.token}/", Origin="http://evil.example")
    policy = answer.getheader("Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'self';")
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.getheader("Access-Control-Allow-Origin") is None
    assert answer.getheader("Referrer-Policy") == "no-referrer"
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    assert answer.getheader("Cache-Control") == "no-store"


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("nothing", 404, "no such page"),
        ("../server.py", 404, "no such page"),
        ("%2e%2e/server.py", 404, "no such page"),
        ("api/nothing", 404, "no such page"),
        ("api/echo?wrong=1", 400, "wrong: no"),
        ("api/echo?gone=1", 502, "node1: no agent"),
        (f"api/echo?{'&'.join(['a=1'] * 21)}", 400, "too many parameters"),
    ],
)
def test_bad_requests_get_one_line(server, path, status, why):
    answer, body = get(server, f"/{server.token}/{path}")
    assert (answer.status, text(body)) == (status, why)


def test_it_only_answers_get(server):
    assert get(server, f"/{server.token}/api/echo", method="POST")[0].status == 405


def test_it_listens_at_this_machine_only(server):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port), timeout=10)


def test_a_port_that_is_taken(server):
    with pytest.raises(
        ConfigError, match=r"cannot listen at 127.0.0.1:\d+: Address already in use"
    ):
        PageServer({}, server.port)


def test_a_browser_that_goes_away_is_no_error(server, capfd):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /")
    assert get(server, f"/{server.token}/")[0].status == 200
    assert capfd.readouterr() == ("", "")


def test_the_page_never_turns_text_into_markup_or_code(server):
    folder = Path(__file__).parents[4] / "ebpflb/kubectl/ui/static"
    scripts = sorted(folder.glob("*.js"))
    assert len(scripts) > 5
    for path in scripts:
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert word not in path.read_text(), path.name
