# SPDX-License-Identifier: Apache-2.0
"""A server that answers at a port, and what its clients do."""

import http.client
import socket
import ssl
import time
from collections.abc import Callable, Iterator

from ebpflb.web.answers import Answer, Request, StreamedAnswer
from ebpflb.web.server import Clients, Encryption, HttpServer

SECONDS = 60
BROKEN_OFF = (ConnectionError, http.client.IncompleteRead)
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"GET /livez HTTP/1.1\r\nHost:"
OK, LARGE = Answer(b"ok"), Answer(bytes(8 << 20))


class Served:
    """A listening socket, its clients, and their requests."""

    def __init__(
        self,
        server: HttpServer,
        answer: Answer | StreamedAnswer,
        most: int = 256,
        encryption: Encryption | None = None,
    ) -> None:
        self.server, self.answer = server, answer
        self.clients = Clients(most)
        self.requests: list[Request] = []
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.socket.getsockname()[1]
        server.listen(self.socket, self._respond, self.clients, encryption)

    async def _respond(self, request: Request) -> Answer | StreamedAnswer:
        self.requests.append(request)
        return self.answer

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), SECONDS)
        client.sendall(sent)
        return client

    def status(self, sent: bytes = REQUEST) -> int:
        return int(read(self.connect(sent))[9:12])


def read(client: socket.socket) -> bytes:
    """Until the server closes."""
    with client:
        return b"".join(iter(lambda: client.recv(65536), b""))


def endless() -> Iterator[bytes]:
    while True:
        time.sleep(0.01)
        yield b""


def read_body(client: socket.socket) -> bytes:
    """All that was announced."""
    answer = http.client.HTTPResponse(client)
    answer.begin()
    return answer.read()


def wait_until(is_so: Callable[[], object]) -> None:
    deadline = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.01)


def is_dropped(client: socket.socket) -> bool:
    try:
        return not read(client)
    except (ConnectionResetError, ssl.SSLError):
        return True
