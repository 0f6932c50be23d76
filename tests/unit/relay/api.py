# SPDX-License-Identifier: Apache-2.0
"""The API server over TLS, as a pod reaches it: it passes on what the fake one has, and reviews."""

import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.certificates import Authority
from tests.unit.relay.cluster import allows


class Account:
    """The files of a ServiceAccount, and where the API server is. rights: see ReviewedAccess."""

    def __init__(self, folder: Path) -> None:
        self._ca = Authority(folder, "kubernetes")
        self.certificate = self._ca.certificate
        self.token = folder / "token"
        self.token.write_text("t0k3n")
        self.served = self._ca.issue(folder / "served", "kube-apiserver", address="127.0.0.1")
        self.rights: set[str] = set()
        self.environment: dict[str, str] = {}


@contextmanager
def reachable(account: Account, behind: str) -> Iterator[ThreadingHTTPServer]:
    """`behind`: the URL of the fake API server."""

    class Conversation(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            connection = HTTPConnection(urlsplit(behind).netloc)
            with closing(connection):
                connection.request("GET", self.path)
                answer = connection.getresponse()
                self._send(answer.status, answer.read())

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            answer = {"status": {"allowed": allows(account.rights, review)}}
            self._send(201, json.dumps(answer).encode())

        def _send(self, status: int, content: bytes) -> None:
            is_known = self.headers["Authorization"].lower() == "bearer t0k3n"
            self.send_response(status if is_known else 401)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account.served / "tls.crt", account.served / "tls.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Conversation)
    server.daemon_threads = False
    server.socket = context.wrap_socket(server.socket, server_side=True)
    account.environment = {
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(server.server_address[1]),
    }
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
