# SPDX-License-Identifier: Apache-2.0
"""A process in a cgroup that has both ends of TCP connections and closes them in every order."""

import ctypes
import socket
import time
from collections.abc import Callable
from struct import pack

from tests.bpf.harness.asked import Asked, answer

# Address and port. Importing the tests' own class would import scapy: seconds under emulation.
_End = tuple[str, int]

_LINGER_NO = pack("ii", 1, 0)
_DELIVERED = 0.15
# A socket address of family AF_UNSPEC: connect() to it ends the connection.
_NOBODY = bytes(16)


class Conversing(Asked):
    """The other end of the process."""

    def converse(self, way: str, frontend: _End, backend: _End, sizes: tuple[int, int]) -> int:
        """Run one connection, closed as WAYS says, with that many bytes each way; the client's
        port.

        Or run one step: "in vain", "opens", "stays", "peer", "goes", "elsewhere". The last one ends
        the open connection, fails to connect the same socket to `frontend` and then talks to a
        server at `backend`.
        """
        return int(self.ask(way, frontend, backend, sizes))


def _finish(one: socket.socket, other: socket.socket) -> None:
    one.close()
    assert other.recv(1) == b""
    other.close()


def _together(client: socket.socket, server: socket.socket) -> None:
    client.close()
    server.close()


def _half_close(client: socket.socket, server: socket.socket) -> None:
    client.shutdown(socket.SHUT_WR)
    assert server.recv(1) == b""
    server.sendall(b"more")
    _read(client, 4)


def _half_close_and_finish(client: socket.socket, server: socket.socket) -> None:
    _half_close(client, server)
    _finish(server, client)


def _half_close_and_leave(client: socket.socket, server: socket.socket) -> None:
    _half_close(client, server)
    client.close()
    time.sleep(_DELIVERED)
    server.close()


def _half_close_and_reset(client: socket.socket, server: socket.socket) -> None:
    _half_close(client, server)
    _reset(server, client)


def _reset(one: socket.socket, other: socket.socket) -> None:
    one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NO)
    one.close()
    time.sleep(_DELIVERED)
    other.close()


def _leave_unread(one: socket.socket, other: socket.socket) -> None:
    other.sendall(b"more")
    time.sleep(_DELIVERED)
    one.close()
    time.sleep(_DELIVERED)
    other.close()


WAYS: dict[str, Callable[[socket.socket, socket.socket], None]] = {
    "client first": _finish,
    "server first": lambda client, server: _finish(server, client),
    "both at once": _together,
    "half close, then data": _half_close_and_finish,
    "half close, then data, then close": _half_close_and_leave,
    "half close, then data, then reset": _half_close_and_reset,
    "client resets": _reset,
    "server resets": lambda client, server: _reset(server, client),
    "client leaves data": _leave_unread,
    "server leaves data": lambda client, server: _leave_unread(server, client),
}


def _read(source: socket.socket, size: int) -> None:
    while size:
        part = source.recv(min(size, 1 << 16))
        assert part
        size -= len(part)


def _talk(client: socket.socket, server: socket.socket, sizes: tuple[int, int]) -> None:
    for source, target, size in ((client, server, sizes[0]), (server, client, sizes[1])):
        for at in range(0, size, 1 << 14):
            part = min(size - at, 1 << 14)
            source.sendall(bytes(part))
            _read(target, part)


def _in_vain(frontend: _End) -> int:
    family = socket.AF_INET6 if ":" in frontend[0] else socket.AF_INET
    with socket.socket(family) as client:
        client.settimeout(0.5)
        assert client.connect_ex(frontend)
    return 0


_OPEN: list[socket.socket] = []
# A long connection's counters are flushed every second.
_STAY_SECONDS = {"opens": 0.01, "stays": 2.0}


def _stay(frontend: _End, backend: _End, seconds: float) -> int:
    """Leaves a connection open that has exchanged requests and replies for that long."""
    client, server = _connected(frontend, backend)
    deadline = time.monotonic() + seconds
    is_over = False
    while not is_over:
        is_over = time.monotonic() > deadline
        _talk(client, server, (10, 10))
        time.sleep(0.001)
    _OPEN.extend((client, server))
    return 0


def _peer() -> int:
    """The port of the peer, as the client of the open connection sees it."""
    return int(_OPEN[0].getpeername()[1])


def _go() -> int:
    client, server = _OPEN
    _OPEN.clear()
    _finish(client, server)
    return 0


def _talk_elsewhere(nowhere: _End, elsewhere: _End) -> int:
    client, before = _OPEN
    _OPEN.clear()
    assert not ctypes.CDLL(None).connect(client.fileno(), _NOBODY, len(_NOBODY))
    before.close()
    assert client.connect_ex(nowhere)
    with socket.create_server(elsewhere, family=client.family) as accepting:
        client.connect(elsewhere)
        server = accepting.accept()[0]
    for _ in range(100):
        _talk(client, server, (10, 10))
    _finish(client, server)
    return 0


def _connected(frontend: _End, backend: _End) -> tuple[socket.socket, socket.socket]:
    family = socket.AF_INET6 if ":" in frontend[0] else socket.AF_INET
    with socket.create_server(backend, family=family) as accepting:
        client = socket.create_connection(frontend)
        return client, accepting.accept()[0]


def _converse(way: str, frontend: _End, backend: _End, sizes: tuple[int, int]) -> int:
    if way == "in vain":
        return _in_vain(frontend)
    if way in _STAY_SECONDS:
        return _stay(frontend, backend, _STAY_SECONDS[way])
    if way == "peer":
        return _peer()
    if way == "goes":
        return _go()
    if way == "elsewhere":
        return _talk_elsewhere(frontend, backend)
    client, server = _connected(frontend, backend)
    port = int(client.getsockname()[1])
    _talk(client, server, sizes)
    time.sleep(_DELIVERED)
    WAYS[way](client, server)
    time.sleep(_DELIVERED)
    return port


if __name__ == "__main__":
    answer(lambda way, *lists: _converse(way, *map(tuple, lists)))
