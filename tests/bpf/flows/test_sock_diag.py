# SPDX-License-Identifier: Apache-2.0
"""Real sockets of this process, on the loopback device."""

import errno
import socket
from contextlib import ExitStack

import pytest

from ebpflb.dataplane.kernel.namespaces import visit_others
from ebpflb.dataplane.kernel.sock_diag import ConnectedSocket, OpenSocket, SockDiag
from ebpflb.model.address import Protocol, parse_address
from tests.e2e.harness.waiting import wait_until, wait_until_equal

SO_COOKIE = 57
PORT = 9
TCP_ESTABLISHED, TCP_FIN_WAIT2, TCP_CLOSE_WAIT = 1, 5, 8
IDLE_SECONDS = 60
FAMILIES = [
    pytest.param(socket.AF_INET, "127.0.0.1", id="IPv4"),
    pytest.param(socket.AF_INET6, "::1", id="IPv6"),
    pytest.param(socket.AF_INET6, "::ffff:127.0.0.1", id="IPv4 of an IPv6 socket"),
]


def cookie_of(made: socket.socket) -> int:
    return int.from_bytes(made.getsockopt(socket.SOL_SOCKET, SO_COOKIE, 8), "little")


def find(diag: SockDiag, made: socket.socket) -> ConnectedSocket | None:
    cookie = cookie_of(made)
    return next((each for each in diag.connected() if each.cookie == cookie), None)


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_connected_socket_is_found_and_learns_that_it_has_ended(family: int, address: str):
    with socket.socket(family, socket.SOCK_DGRAM) as made, SockDiag() as diag:
        made.settimeout(1)
        made.connect((address, PORT))
        found = find(diag, made)
        assert found
        assert (found.peer, found.port) == (parse_address(address), PORT)
        assert diag.destroy(found)
        assert find(diag, made) is None
        assert not diag.destroy(found)
        with pytest.raises(ConnectionAbortedError):
            made.recv(1)
        with pytest.raises(OSError, match="Destination address") as caught:
            made.send(b"x")
        assert caught.value.errno == errno.EDESTADDRREQ
        made.connect((address, PORT))
        assert made.send(b"x") == 1


def test_an_unconnected_socket_is_not_found():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made, SockDiag() as diag:
        made.bind(("127.0.0.1", 0))
        assert find(diag, made) is None


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_all_sockets_that_have_a_port_are_listed_until_they_are_closed(address: str):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with SockDiag() as diag, socket.create_server((address, 0), family=family) as server:
        made = [socket.socket(family, socket.SOCK_DGRAM) for _ in range(2)]
        made[0].bind((address, 0))
        made[1].connect((address, PORT))
        connections = [
            server,
            socket.create_connection(server.getsockname()[:2]),
            server.accept()[0],
        ]
        datagrams, streams = set(map(cookie_of, made)), set(map(cookie_of, connections))
        assert datagrams <= diag.cookies(Protocol.UDP)
        assert streams <= diag.cookies(Protocol.TCP)
        for each in (*made, *connections):
            each.close()
        assert not datagrams & diag.cookies(Protocol.UDP)


@pytest.mark.parametrize(("family", "address"), FAMILIES[:2])
def test_a_tcp_connection_is_found_with_both_ends_and_ends_at_both(family: int, address: str):
    with ExitStack() as stack:
        diag = stack.enter_context(SockDiag())
        server = stack.enter_context(socket.create_server((address, 0), family=family))
        made = stack.enter_context(socket.create_connection(server.getsockname()[:2]))
        accepted = stack.enter_context(server.accept()[0])
        for each in (made, accepted):
            each.settimeout(1)
        (found,) = (each for each in diag.connections() if each.socket.cookie == cookie_of(made))
        assert found.own == (parse_address(address), made.getsockname()[1])
        assert (found.socket.peer, found.socket.port) == (
            parse_address(address),
            server.getsockname()[1],
        )
        assert diag.destroy(found.socket)
        assert not diag.destroy(found.socket)
        with pytest.raises(ConnectionAbortedError):
            made.recv(1)
        with pytest.raises(ConnectionResetError):
            accepted.recv(1)


def test_a_connection_with_unread_bytes_is_not_idle():
    with ExitStack() as stack:
        diag = stack.enter_context(SockDiag())
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        made = stack.enter_context(socket.create_connection(server.getsockname()))
        accepted = stack.enter_context(server.accept()[0])
        cookie = cookie_of(accepted)

        def is_idle() -> bool:
            (idle,) = (each.idle for each in diag.connections() if each.socket.cookie == cookie)
            return idle > 0

        wait_until(is_idle, "it is idle")
        made.send(b"x")
        wait_until_equal(is_idle, False)
        accepted.recv(1)
        wait_until(is_idle, "it is idle again")


def test_a_socket_with_another_cookie_is_left_alone():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made, SockDiag() as diag:
        made.connect(("127.0.0.1", PORT))
        found = find(diag, made)
        assert found
        other = found.identity[:-8] + bytes(7) + b"\1"
        assert not diag.destroy(found._replace(identity=other))
        assert made.send(b"x") == 1


def test_a_visit_ends_on_request():
    visits = []

    def visit() -> bool:
        visits.append(1)
        return True

    visit_others(visit)
    assert len(visits) <= 1


@pytest.mark.parametrize("protocol", [Protocol.TCP, Protocol.UDP])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_where_sockets_wait_for_clients(protocol, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if protocol is Protocol.TCP else socket.SOCK_DGRAM
    with socket.socket(family, kind) as made, SockDiag() as diag:
        made.bind((address, 0))
        if protocol is Protocol.TCP:
            made.listen()
        where = (parse_address(address), made.getsockname()[1])
        assert where in diag.waiting(protocol)
    with SockDiag() as diag:
        assert where not in diag.waiting(protocol)


def test_sctp_sockets_are_not_listed():
    with SockDiag() as diag:
        assert diag.waiting(Protocol.SCTP) == set()


@pytest.mark.parametrize(("family", "address"), FAMILIES)
def test_a_tcp_socket_tells_how_far_it_is(family: int, address: str):
    is_ipv4 = address.endswith(".1")
    place = ("127.0.0.1" if is_ipv4 else address, 0)
    with (
        socket.create_server(place, family=socket.AF_INET if is_ipv4 else family) as server,
        socket.socket(family, socket.SOCK_STREAM) as client,
        SockDiag() as diag,
    ):
        client.connect((address, server.getsockname()[1]))
        with server.accept()[0] as accepted:
            client.sendall(b"request")
            assert accepted.recv(100) == b"request"
            accepted.sendall(b"an answer")
            assert client.recv(100) == b"an answer"

            def found(of: socket.socket) -> OpenSocket:
                (seen,) = [x for x in diag.sockets(Protocol.TCP) if x.cookie == cookie_of(of)]
                return seen

            def progress(of: socket.socket) -> tuple[int, int, int]:
                state, idle, sent, received = found(of).progress or (0, 0, 0, 0)
                assert 0 <= idle < IDLE_SECONDS
                return state, sent, received

            at = parse_address(address), client.getsockname()[1]
            assert (found(client).address, found(client).port) == at
            wait_until_equal(lambda: progress(client), (TCP_ESTABLISHED, 7, 9))
            client.shutdown(socket.SHUT_WR)
            assert accepted.recv(100) == b""
            wait_until_equal(lambda: progress(client), (TCP_FIN_WAIT2, 7, 9))
            wait_until_equal(lambda: progress(accepted)[::2], (TCP_CLOSE_WAIT, 7))


def test_a_udp_socket_tells_its_port_alone():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made, SockDiag() as diag:
        made.bind(("127.0.0.1", 0))
        (found,) = [x for x in diag.sockets(Protocol.UDP) if x.cookie == cookie_of(made)]
        port = made.getsockname()[1]
        assert found == OpenSocket(cookie_of(made), parse_address("127.0.0.1"), port, None)
