# SPDX-License-Identifier: Apache-2.0
"""Requests to the query socket: a reply, or one error in one line."""

import json
import socket
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn
from unittest.mock import patch

from ebpflb.agent import map_queries
from ebpflb.agent.explain import Explaining
from ebpflb.agent.map_queries import MapQueries
from ebpflb.dataplane.explain.question import ExplainQuestion
from ebpflb.dataplane.layout.records import pack_name
from ebpflb.model.changes import Changes
from ebpflb.model.compact import from_compact
from ebpflb.observe.flows import queries
from ebpflb.observe.flows.flow_log import FlowLog
from ebpflb.observe.flows.past_rates import PastRatesQueries
from ebpflb.observe.http.query_socket import HttpQueryError, QueryServer, Route
from ebpflb.web.server import HttpServer
from tests.builders import NODE, OTHER_NODE, endpoint, endpoint_slice, port_name, service
from tests.fuzz.targets import Play, Target
from tests.fuzz.targets.http import exchange, no_complaints
from tests.memory_maps import memory_maps
from tests.unit.agent.flows import SERVICE, pod_of, record, refused
from tests.unit.dataplane.view.opened import GONE, Opened

_TARGETS = [
    b"/v1/flows",
    b"/v1/flows?limit=1&since=1h&verdict=forwarded,refused&event=end,start&namespace=default",
    b"/v1/flows?service=default/web&from=default%2Fcurl&to=10.96.0.10&follow=1",
    b"/v1/names",
    b"/v1/explain?from=10.1.0.5,fd00%3A%3A5&to=default/web&port=http&protocol=TCP&is_pod=true",
    b"/v1/explain?to=10.96.0.10&port=80&source_port=40000&pins=/sys/fs/bpf/ebpflb",
    b"/v1/services?namespace=default&service=default/web",
    b"/v1/top?interval=500ms&namespace=default",
    b"/v1/top?at=2026-11-24T03:10Z&window=5m&namespace=default",
    b"/v1/connections?namespace=default&service=default%2Fweb&older=1s&backend-gone=false",
    b"/v1/connections?from=10.1.0.9",
    b"http://[::1/v1/flows",
]
_SEEDS = [
    *(b"GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n" % each for each in _TARGETS),
    b"POST /v1/flows HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello",
    b"HEAD /v1/names HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
]
_WORDS = [
    *(
        b"GET ",
        b"HEAD ",
        b" HTTP/1.1\r\n",
        b"\r\n\r\n",
        b"Host: a\r\n",
        b"Expect: 100-continue\r\n",
    ),
    *(
        b"/v1/flows",
        b"/v1/names",
        b"/v1/explain",
        b"/v1/services",
        b"/v1/top",
        b"/v1/connections",
        b"%2F",
        b"%00",
        b"%ff",
        b"&",
    ),
    *(f"{name}=".encode() for name in queries.PARAMETERS),
    *(
        b"interval=",
        b"at=",
        b"window=",
        b"03:10",
        b"older=",
        b"backend-gone=",
        b"true",
        b"30s",
        b"500ms",
        b"fd00::5",
    ),
    *(f"{name}=".encode() for name in ExplainQuestion.__struct_encode_fields__),
    *(b"default/web", b"default/web-a", b"10.1.0.9", b"[::1]", b"9" * 5000, b"1e999", b"1h", b"//"),
]


@contextmanager
def _playing() -> Iterator[Play]:
    server = HttpServer()
    with ExitStack() as stack:
        # A client that follows does not wait for flows, nor one that counts for its sample.
        stack.enter_context(patch.object(queries, "_LOOK_SECONDS", 0.0))
        stack.enter_context(
            patch.object(map_queries, "time", SimpleNamespace(sleep=lambda _: None))
        )
        opened = _opened()
        stack.enter_context(patch.object(map_queries, "open_sockets", lambda: opened.sockets))
        path = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "agent.sock"
        queried = QueryServer(server, path, _routes(opened))
        queried.start()
        try:
            yield partial(_play, path)
        finally:
            queried.stop()
            server.stop()


def _opened() -> Opened:
    """A node with connections through a Service."""
    opened = Opened()
    opened.tcp(1)
    opened.tcp(2, GONE, age=3600)
    opened.udp(3)
    opened.flow()
    return opened


def _routes(opened: Opened) -> Mapping[str, Route]:
    """Routes of an agent that knows two pods behind a Service, and has recorded flows of them."""
    changes = Changes(NODE)
    changes.set(service())
    web = endpoint("10.1.0.1", OTHER_NODE, pod="default/web-a")
    changes.set(endpoint_slice("web-1", web, endpoint("10.1.0.9", pod="default/curl")))
    maps = memory_maps({})
    maps["lb_names"].update(SERVICE.to_bytes(4, "little"), pack_name(port_name()))
    log = FlowLog(100, changes, lambda: maps, pod_of(changes))
    log.accept([record(), refused(client="10.1.0.8", frontend="fd00::5")])
    ask: queries.AskLoop = partial(_ask, changes)
    explaining = Explaining(Path("/sys/fs/bpf/ebpflb"), _no_maps, ask, log)
    past = PastRatesQueries(log, None, 1).answer
    found = MapQueries(lambda: opened.maps, changes, past, pod_of(changes))
    return {**queries.query_routes(changes, log), **explaining.routes, **found.routes}


def _ask(changes: Changes, query: queries.ModelQuery[Any]) -> None:
    query.answer(changes)


def _no_maps() -> NoReturn:
    """Requests are tested, not the machine that runs the test."""
    raise HttpQueryError("no maps")


def _play(path: Path, given: bytes) -> None:
    client = socket.socket(socket.AF_UNIX)
    client.connect(str(path))
    with no_complaints():
        reply = exchange(client, given)
    if reply is None or given.startswith(b"HEAD "):
        return
    lines = reply.body.decode().splitlines()
    if reply.status == HTTPStatus.OK:
        for line in lines:
            _read(line)
    else:
        assert len(lines) == 1, lines


def _read(line: str) -> None:
    """Of an answer: JSON, as it is or compact."""
    try:
        json.loads(line)
    except ValueError:
        json.loads(from_compact(line))


TARGET = Target(_SEEDS, _WORDS, _playing)
