# SPDX-License-Identifier: Apache-2.0
"""An API server of many made-up Services that never change: it lists them, and watches are silent.

A real one takes ten minutes to have that many objects.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from ebpflb.lab import LabNode
from tests.bench.harness import manifests
from tests.bench.harness.manifests import Document

_PAGE = 500
_VERSION = "1"
# A real object's other metadata: who set which fields, and when.
_MANAGED = [
    {
        "manager": "kube-controller-manager",
        "operation": "Update",
        "apiVersion": "v1",
        "time": "2026-01-01T00:00:00Z",
        "fieldsType": "FieldsV1",
        "fieldsV1": {"f:metadata": {"f:labels": {".": {}, "f:app": {}}}, "f:spec": {"f:ports": {}}},
    }
]


class _Listed(ThreadingHTTPServer):
    """pages: the path of a resource -> its list, page by page."""

    daemon_threads = True

    def __init__(self, pages: Mapping[str, Sequence[bytes]]) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self.pages = pages
        self.stopped = threading.Event()


class _Conversation(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listed

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = parse_qs(url.query)
        if "watch" in query:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.server.stopped.wait()
        else:
            pages = self.server.pages.get(url.path) or [_page([], 0)]
            self._send(200, pages[int(query.get("continue", ["0"])[0])])

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._send(201, b"{}")

    def log_message(self, *_: Any) -> None:
        """Discard log messages."""

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextmanager
def serving(node: LabNode, services: int, endpoints: int, nodes: Sequence[str]) -> Iterator[str]:
    """The URL, on a node; its endpoints alternate between `nodes`."""
    pairs = [_pair(number, endpoints, nodes) for number in range(services)]
    pages = {
        "/api/v1/services": _pages([service for service, _ in pairs]),
        "/apis/discovery.k8s.io/v1/endpointslices": _pages([piece for _, piece in pairs]),
    }
    del pairs
    with node.entered():
        server = _Listed(pages)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()


def _pair(number: int, endpoints: int, nodes: Sequence[str]) -> tuple[Document, Document]:
    name = manifests.name_of(number)
    service = manifests.service(name, manifests.cluster_ip(number))
    return service, manifests.endpoint_slice(name, manifests.pods(number, endpoints), nodes)


def _pages(documents: Sequence[Document]) -> list[bytes]:
    starts = range(0, len(documents), _PAGE)
    return [
        _page(documents[at : at + _PAGE], number + 1 if number + 1 < len(starts) else 0)
        for number, at in enumerate(starts)
    ]


def _page(documents: Sequence[Document], following: int) -> bytes:
    for each in documents:
        each["metadata"] |= {"resourceVersion": _VERSION, "managedFields": _MANAGED}
    metadata = {"resourceVersion": _VERSION, "continue": str(following or "")}
    return json.dumps({"metadata": metadata, "items": documents}).encode()
