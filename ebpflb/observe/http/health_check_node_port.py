# SPDX-License-Identifier: Apache-2.0
"""Answers load balancers at the health check node port of each Service: one thread for all.

There may be hundreds of such ports, with a question every few seconds at each. So one epoll waits
for all of them, each connection has one question, and one that is slow keeps nobody waiting.
"""

import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ebpflb.errors import EbpflbError
from ebpflb.model.address import Family
from ebpflb.model.health_check import HealthCheck
from ebpflb.model.service import ServiceName
from ebpflb.observe.http.health_check_answer import answer, bad_request, is_whole
from ebpflb.observe.http.tcp_place import tcp_socket

_log = logging.getLogger("ebpflb.observe")

Checks = Mapping[ServiceName, HealthCheck]
Addresses = Callable[[], Mapping[Family, Sequence[str]]]

_MOST_CONNECTIONS = 256
_LONGEST_REQUEST = 65536
_REQUEST_SECONDS = 10.0
# Where there is no file descriptor left for a connection.
_PAUSE_SECONDS = 0.1


class _Place(NamedTuple):
    """What a socket is for."""

    service: ServiceName
    family: Family
    port: int


@dataclass(slots=True)
class _Connection:
    socket: socket.socket
    place: _Place
    deadline: float
    received: bytearray = field(default_factory=bytearray)
    is_answered: bool = False


class HealthCheckServer:
    """Listens where `serve()` says, until `stop()`. The thread starts with the first port."""

    def __init__(self, is_healthy: Callable[[], bool], addresses: Addresses) -> None:
        """`is_healthy`: as /livez. `addresses`: where to listen, asked when a port is opened."""
        self._is_healthy = is_healthy
        self._addresses = addresses
        self._checks: Checks = {}
        self._open: dict[_Place, list[socket.socket]] = {}
        # Of the listening sockets; and held lest a number is closed and used anew meanwhile.
        self._places: dict[int, _Place] = {}
        self._lock = threading.Lock()
        self._connections: dict[int, _Connection] = {}
        self._epoll = select.epoll()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._wake, select.EPOLLIN)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ebpflb-checks", daemon=True)

    def serve(self, checks: Checks) -> dict[ServiceName, str]:
        """Answer these and no others from now on; where that is not possible, and why.

        A port that cannot be had is tried again at the next call. For one thread.
        """
        self._checks = checks
        wanted = {
            _Place(name, family, check.port)
            for name, check in checks.items()
            for family in check.local_ready
        }
        for place in self._open.keys() - wanted:
            self._close(place)
        missing = sorted(wanted - self._open.keys())
        return self._listen_at(missing) if missing else {}

    def stop(self) -> None:
        """Close everything and end the thread."""
        self._stopped.set()
        os.eventfd_write(self._wake, 1)
        if self._thread.is_alive():
            self._thread.join()
        for place in list(self._open):
            self._close(place)
        for number in list(self._connections):
            self._drop(number)
        self._epoll.close()
        os.close(self._wake)

    def _listen_at(self, places: Sequence[_Place]) -> dict[ServiceName, str]:
        errors: dict[ServiceName, str] = {}
        try:
            addresses = self._addresses()
        except EbpflbError as error:
            return {place.service: f"port {place.port}: {error}" for place in places}
        for place in places:
            sockets: list[socket.socket] = []
            try:
                for host in addresses.get(place.family, ()):
                    sockets.append(tcp_socket(host, place.port))
            except OSError as error:
                _close_all(sockets)
                if error.errno == errno.EAFNOSUPPORT:
                    # A node without IPv6: nobody can ask there.
                    continue
                shown = f"[{host}]" if ":" in host else host
                errors.setdefault(place.service, f"{shown}:{place.port}: {error.strerror}")
            else:
                self._add(place, sockets)
        return errors

    def _add(self, place: _Place, sockets: list[socket.socket]) -> None:
        if not sockets:
            return
        self._open[place] = sockets
        for each in sockets:
            each.setblocking(False)
            self._places[each.fileno()] = place
            self._epoll.register(each, select.EPOLLIN)
        if self._thread.ident is None:
            self._thread.start()

    def _close(self, place: _Place) -> None:
        with self._lock:
            sockets = self._open.pop(place)
            for each in sockets:
                del self._places[each.fileno()]
            _close_all(sockets)

    def _run(self) -> None:
        while not self._stopped.is_set():
            for number, _ in self._epoll.poll(self._patience()):
                self._attend(number)
            self._drop_late()

    def _patience(self) -> float | None:
        """Seconds until the oldest connection is given up."""
        for oldest in self._connections.values():
            return max(0.0, oldest.deadline - time.monotonic())
        return None

    def _drop_late(self) -> None:
        now = time.monotonic()
        late = [number for number, each in self._connections.items() if each.deadline <= now]
        for number in late:
            self._drop(number)

    def _attend(self, number: int) -> None:
        connection = self._connections.get(number)
        if connection is None:
            self._accept(number)
            return
        try:
            self._converse(connection)
        except BlockingIOError:
            pass
        except OSError as error:
            _log.debug("a health check failed: %s", error)
            self._drop(number)

    def _accept(self, number: int) -> None:
        try:
            found = self._accepted(number)
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            _log.debug("cannot take a health check: %s", error)
            time.sleep(_PAUSE_SECONDS)
            return
        if found is None:
            return
        if len(self._connections) >= _MOST_CONNECTIONS:
            self._drop(next(iter(self._connections)))
        found.socket.setblocking(False)
        self._connections[found.socket.fileno()] = found
        self._epoll.register(found.socket, select.EPOLLIN)

    def _accepted(self, number: int) -> _Connection | None:
        """The next connection of a listening socket, None if that was closed meanwhile."""
        with self._lock:
            place = self._places.get(number)
            if place is None:
                return None
            server = next(each for each in self._open[place] if each.fileno() == number)
            accepted, _ = server.accept()
        return _Connection(accepted, place, time.monotonic() + _REQUEST_SECONDS)

    def _converse(self, connection: _Connection) -> None:
        """Read on; answer once the headers are there, then wait for the other side to close.

        To close first, with a body of the request still to come, would destroy the answer.
        """
        received = connection.socket.recv(_LONGEST_REQUEST)
        if not received:
            self._drop(connection.socket.fileno())
        elif not connection.is_answered:
            connection.received += received
            if response := self._response(connection.received, connection.place):
                connection.is_answered = True
                connection.socket.send(response)
                connection.socket.shutdown(socket.SHUT_WR)

    def _response(self, received: bytearray, place: _Place) -> bytes:
        """Empty as long as more is to come."""
        if not is_whole(received):
            return bad_request() if len(received) > _LONGEST_REQUEST else b""
        check = self._checks.get(place.service)
        count = check.local_ready.get(place.family, 0) if check else 0
        return answer(received, place.service, count, healthy=self._is_healthy())

    def _drop(self, number: int) -> None:
        self._connections.pop(number).socket.close()


def _close_all(sockets: Sequence[socket.socket]) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.close()
