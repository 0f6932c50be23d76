# SPDX-License-Identifier: Apache-2.0
"""Requests to the plugin's page: a reply in JSON, or one error in one line."""

import json
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from http import HTTPStatus

from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.query import GROUPS, SORTS, ViewQuery
from ebpflb.kubectl.ui.server import ADDRESS, PageServer
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from tests.fuzz.targets import Play, Target
from tests.fuzz.targets.http import exchange, no_complaints
from tests.ui.flows import dropped, failed, flow, of_node, refused
from tests.ui.page import pages_of

# In place of the secrets that each server generates.
_TOKEN, _HOST = b"TOKEN", b"HOST"
_PATHS = [
    b"/TOKEN/",
    b"/TOKEN/app.js",
    b"/TOKEN/api/view",
    b"/TOKEN/api/view?group=pod&window=300&namespace=shop&verdict=failed&sort=sent&rows=10",
    b"/TOKEN/api/view?service=shop%2Fweb&node=node1&text=cart",
    b"/TOKEN/api/line?client=workload%3Ashop%2Fcart&via=service%3Ashop%2Fweb&target=",
    b"/TOKEN/api/view?until=2026-11-29T03:10:00Z",
    b"/TOKEN/api/explain?flow=1",
    b"/wrong/api/view",
]
_SEEDS = [b"GET %s HTTP/1.1\r\nHost: HOST\r\n\r\n" % path for path in _PATHS]
_WORDS = [
    *(b"GET ", b" HTTP/1.1\r\n", b"\r\n\r\n", b"Host: HOST\r\n", b"/TOKEN/", b"/TOKEN/api/", b"&"),
    *(f"{each.name}=".encode() for each in fields(ViewQuery)),
    *(each.encode() for each in (*GROUPS, *SORTS)),
    *(b"flow=", b"9" * 5000, b"%00", b"%ff", b"others:others", b"../", b"%2e%2e/"),
]
_FLOWS = [
    flow(),
    flow(client="shop/pay-0", rtt_seconds=None),
    failed(),
    refused(client={"address": "198.51.100.7", "port": 5}),
    dropped(client={"address": "10.1.0.4", "pod": "--all"}, frontend={"address": "-o", "port": 80}),
]
_ARGUMENT = re.compile(r"[A-Za-z0-9\[][A-Za-z0-9.:/\[\]-]*")


@contextmanager
def _playing() -> Iterator[Play]:
    traffic = EdgeTraffic()
    for each in _FLOWS:
        traffic.add(of_node("node1", each))
    pages = pages_of(traffic, Following(traffic, dict), run=_run)
    with PageServer(pages) as server:
        yield partial(_play, server)


def _run(node: str, arguments: Sequence[str]) -> str:
    command, *rest = arguments
    assert command == "explain", arguments
    assert all(map(_ARGUMENT.fullmatch, rest)), arguments
    return f"{node}: {' '.join(arguments)}"


def _play(server: PageServer, given: bytes) -> None:
    host = server.hosts[0].encode()
    sent = given.replace(_TOKEN, server.token.encode()).replace(_HOST, host)
    with no_complaints():
        reply = exchange(socket.create_connection((ADDRESS, server.port)), sent)
    if reply is None or not reply.body or reply.body in server.static.values():
        return
    if reply.status == HTTPStatus.OK:
        assert server.token.encode() in sent, "an answer without the token"
        json.loads(reply.body, parse_constant=_refused)
    else:
        assert len(reply.body.splitlines()) == 1, reply.body


def _refused(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


TARGET = Target(_SEEDS, _WORDS, _playing)
