# SPDX-License-Identifier: Apache-2.0
"""Answers load balancers at the health check node port of each Service: one thread for all.

There may be hundreds of such ports, each with a request every few seconds. One selector waits
for all of them, a connection carries one request, and a slow client delays nobody. Whatever the
method and path, the response is kube-proxy's.
"""

import errno
import json
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple

from ebpflb.errors import EbpflbError
from ebpflb.model.address import Family
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.service import ServiceName

_log = logging.getLogger("ebpflb.observe")

Checks = Mapping[ServiceName, HealthCheck]
Addresses = Callable[[], Mapping[Family, Sequence[str]]]

_BACKLOG = 128
_MOST_CONNECTIONS = 256
_LONGEST_REQUEST = 65536
_REQUEST_SECONDS = 10.0
# How long to wait if no file descriptor is left for a connection.
_PAUSE_SECONDS = 0.1
_HEADERS_END = (b"\r\n\r\n", b"\n\n")


class _ServicePort(NamedTuple):
    service: ServiceName
    family: Family
    port: int


@dataclass(slots=True)
class _ClientConnection:
    socket: socket.socket
    port: _ServicePort
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    is_answered: bool = False


class HealthCheckServer:
    """Listens on the ports of `serve()` until `stop()`. The thread starts with the first port."""

    def __init__(self, is_healthy: Callable[[], bool], addresses: Addresses) -> None:
        """`is_healthy`: as for /livez. `addresses`: where to listen, read when a port is opened."""
        self._is_healthy = is_healthy
        self._addresses = addresses
        self._checks: Checks = {}
        self._listening: dict[_ServicePort, list[socket.socket]] = {}
        # Held while accepting, so that no listening socket is closed and its number reused.
        self._lock = threading.Lock()
        # Oldest first.
        self._connections: dict[socket.socket, _ClientConnection] = {}
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-checks", daemon=True)

    def serve(self, checks: Checks) -> dict[ServiceName, str]:
        """Answer for these and no others from now on; returns the errors by Service.

        Ports that could not be opened are retried at the next call. For one thread.
        """
        self._checks = checks
        wanted = {
            _ServicePort(name, family, check.port)
            for name, check in checks.items()
            for family in check.local_ready
        }
        for port in self._listening.keys() - wanted:
            self._close(port)
        missing = sorted(wanted - self._listening.keys())
        return self._open_all(missing) if missing else {}

    def stop(self) -> None:
        """Close everything and end the thread."""
        self._stopped.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for port in list(self._listening):
            self._close(port)
        for connection in list(self._connections):
            self._drop(connection)
        self._selector.close()
        os.close(self._wake)

    def _open_all(self, ports: Sequence[_ServicePort]) -> dict[ServiceName, str]:
        try:
            addresses = self._addresses()
        except EbpflbError as error:
            return {each.service: f"port {each.port}: {error}" for each in ports}
        errors: dict[ServiceName, str] = {}
        for each in ports:
            if text := self._open(each, addresses.get(each.family, ())):
                errors.setdefault(each.service, text)
        return errors

    def _open(self, port: _ServicePort, hosts: Sequence[str]) -> str:
        """Listen on all of these hosts or none; returns the error, or ""."""
        sockets: list[socket.socket] = []
        try:
            for host in hosts:
                sockets.append(_listen(host, port.port))
        except OSError as error:
            for each in sockets:
                each.close()
            if error.errno == errno.EAFNOSUPPORT:
                # Without IPv6 on the node, nobody can ask it over IPv6 either.
                return ""
            shown = f"[{host}]" if ":" in host else host
            return f"{shown}:{port.port}: {os.strerror(error.errno or 0)}"
        for each in sockets:
            self._listening.setdefault(port, []).append(each)
            self._selector.register(each, selectors.EVENT_READ, port)
        if sockets and self._thread.ident is None:
            self._thread.start()
        return ""

    def _close(self, port: _ServicePort) -> None:
        with self._lock:
            for each in self._listening.pop(port):
                self._selector.unregister(each)
                each.close()

    def _run(self) -> None:
        while not self._stopped.is_set():
            for key, _ in self._selector.select(self._patience()):
                match key.data:
                    case _ServicePort():
                        self._accept(key.fileobj, key.data)  # type: ignore[arg-type]
                    case _ClientConnection():
                        self._read(key.data)
            self._drop_late()

    def _patience(self) -> float | None:
        """Seconds until the oldest connection times out."""
        for oldest in self._connections.values():
            return max(0.0, oldest.deadline - time.monotonic())
        return None

    def _drop_late(self) -> None:
        now = time.monotonic()
        for connection in list(self._connections.values()):
            if connection.deadline <= now:
                self._drop(connection.socket)

    def _accept(self, listening: socket.socket, port: _ServicePort) -> None:
        try:
            with self._lock:
                if listening.fileno() < 0:
                    return
                accepted, _ = listening.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            _log.debug("cannot accept a health check: %s", error)
            time.sleep(_PAUSE_SECONDS)
            return
        if len(self._connections) >= _MOST_CONNECTIONS:
            self._drop(next(iter(self._connections)))
        accepted.setblocking(False)
        connection = _ClientConnection(accepted, port, time.monotonic() + _REQUEST_SECONDS)
        self._connections[accepted] = connection
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _read(self, connection: _ClientConnection) -> None:
        try:
            self._answer_when_read(connection)
        except BlockingIOError:
            pass
        except OSError as error:
            _log.debug("a health check failed: %s", error)
            self._drop(connection.socket)

    def _answer_when_read(self, connection: _ClientConnection) -> None:
        """Read more; once the headers are complete, answer, then wait for the client to close.

        Closing first, while part of the request's body is on its way, would lose the response.
        """
        received = connection.socket.recv(_LONGEST_REQUEST)
        if not received:
            self._drop(connection.socket)
        elif not connection.is_answered:
            connection.received += received
            if response := self._response(connection.received, connection.port):
                connection.is_answered = True
                connection.socket.send(response)
                connection.socket.shutdown(socket.SHUT_WR)

    def _response(self, received: bytearray, port: _ServicePort) -> bytes:
        """Empty until the headers are complete."""
        if not any(end in received for end in _HEADERS_END):
            return _bad_request() if len(received) > _LONGEST_REQUEST else b""
        check = self._checks.get(port.service)
        count = check.local_ready.get(port.family, 0) if check else 0
        return _answer(received, port.service, count, healthy=self._is_healthy())

    def _drop(self, connection: socket.socket) -> None:
        if self._connections.pop(connection, None):
            self._selector.unregister(connection)
            connection.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    made.setblocking(False)
    return made


def _answer(received: bytearray, service: ServiceName, local_ready: int, *, healthy: bool) -> bytes:
    """200 if this node should get traffic, otherwise 503; 400 if the request is not HTTP/1."""
    words = received.split(b"\n", 1)[0].split()
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):  # noqa: PLR2004  method, target, version
        return _bad_request()
    good = healthy and local_ready > 0
    headers = {
        "Content-Type": "application/json",
        "X-Content-Type-Options": "nosniff",
        "X-Load-Balancing-Endpoint-Weight": str(local_ready),
    }
    report = {
        "service": {"namespace": service.namespace, "name": service.name},
        "localEndpoints": local_ready,
        "serviceProxyHealthy": healthy,
    }
    body = json.dumps(report, indent="\t").encode()
    status = HTTPStatus.OK if good else HTTPStatus.SERVICE_UNAVAILABLE
    return _response(status, headers, body, has_body=words[0] != b"HEAD")


def _bad_request() -> bytes:
    headers = {"Content-Type": "text/plain; charset=utf-8"}
    return _response(HTTPStatus.BAD_REQUEST, headers, b"400 Bad Request")


def _response(
    status: HTTPStatus, headers: dict[str, str], body: bytes, *, has_body: bool = True
) -> bytes:
    always = {
        "Date": formatdate(usegmt=True),
        "Content-Length": str(len(body)),
        "Connection": "close",
    }
    lines = [f"{name}: {value}" for name, value in (headers | always).items()]
    head = "\r\n".join([f"HTTP/1.1 {status.value} {status.phrase}", *lines, "", ""])
    return head.encode() + (body if has_body else b"")
