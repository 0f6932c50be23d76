# SPDX-License-Identifier: Apache-2.0
"""A Kubernetes API server for the manifests of a node: lists, watches, and endpoint change times.

For tests of how an agent talks to an API server. The real one is in tests/cluster.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from ebpflb.lab import LabNode, Member

_KINDS = {
    "/api/v1/services": "Service",
    "/api/v1/nodes": "Node",
    "/api/v1/namespaces": "Namespace",
    "/api/v1/pods": "Pod",
    "/apis/discovery.k8s.io/v1/endpointslices": "EndpointSlice",
}
_TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
_LOOK_SECONDS = 0.1

Object = dict[str, Any]
Objects = Mapping[str, Object]


class NodeWithApi(LabNode):
    """A node whose agent gets no manifest folder."""

    def environment(self) -> dict[str, str]:
        """Without the manifests."""
        found = LabNode.environment(self)
        del found["EBPFLB_MANIFESTS"]
        return found


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, node: LabNode, host: str, port: int) -> None:
        super().__init__((host, port), _Conversation)
        self.node = node
        self.closed = threading.Event()
        self.listed: dict[str, Objects] = {}

    def objects(self, kind: str) -> Objects:
        """By name; other files are ignored."""
        found: dict[str, Object] = {}
        for path in sorted(self.node.manifests.glob("[!.]*")):
            try:
                written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
                items = list(yaml.load_all(path.read_bytes(), yaml.CSafeLoader))
            except FileNotFoundError:
                continue
            for item in items:
                if item["kind"] == kind and isinstance(item["metadata"], dict):
                    item["metadata"]["annotations"] = {_TRIGGER: written.isoformat()}
                    item["metadata"]["resourceVersion"] = "1"
                    found[item["metadata"]["name"]] = item
        return found

    def wanted(self, kind: str, query: Mapping[str, list[str]]) -> Objects:
        """Of Nodes, only the requested one."""
        found = self.objects(kind)
        (selector,) = query.get("fieldSelector", [""])
        name = selector.removeprefix("metadata.name=")
        return {name: found[name]} if kind == "Node" else found


class _Conversation(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query, kind = parse_qs(url.query), _KINDS.get(url.path)
        if kind is None:
            self._begin(404)
            self._send({"kind": "Status", "message": "not found"})
        elif "sendInitialEvents" in query:
            self._begin(422)
            self._send({"kind": "Status", "reason": "Invalid", "code": 422, "status": "Failure"})
        elif "watch" in query:
            self._begin(200)
            with suppress(ConnectionError):  # Agents are killed, which resets connections.
                self._watch(kind, query)
            return
        else:
            found = self.server.listed[kind] = self.server.wanted(kind, query)
            self._begin(200)
            self._send({"metadata": {"resourceVersion": "1"}, "items": list(found.values())})
        self.wfile.write(b"0\r\n\r\n")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._begin(201)
        self._send({})
        self.wfile.write(b"0\r\n\r\n")

    def log_message(self, *_: object) -> None:
        """Discard log messages."""

    def _watch(self, kind: str, query: Mapping[str, list[str]]) -> None:
        before = self.server.listed[kind]
        while not self.server.closed.wait(_LOOK_SECONDS):
            now = self.server.wanted(kind, query)
            for name in before.keys() - now.keys():
                self._send({"type": "DELETED", "object": before[name]})
            for name, item in now.items():
                if item != before.get(name):
                    verb = "MODIFIED" if name in before else "ADDED"
                    self._send({"type": verb, "object": item})
            before = now
        self.wfile.write(b"0\r\n\r\n")

    def _begin(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def _send(self, content: Object) -> None:
        text = json.dumps(content).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))


@contextmanager
def manifest_api(
    node: LabNode, at: Member | None = None, port: int = 0
) -> Iterator[tuple[LabNode, list[str]]]:
    """Serve the API inside the node or another member; yields the node for an agent, and its
    options.

    port: 0 for a free one.
    """
    host = at.ipv4 if at else "127.0.0.1"
    with (at or node).entered():
        server = _Server(node, host, port)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        same = NodeWithApi(**{each.name: getattr(node, each.name) for each in fields(node)})
        yield same, ["--master", f"http://{host}:{server.server_port}"]
    finally:
        server.closed.set()
        server.shutdown()
        thread.join()
        server.server_close()
