# SPDX-License-Identifier: Apache-2.0
"""Sockets of a member of the lab, used by the test process.

A socket always belongs to the network namespace and the cgroup of the process that created it. So a
child process inside the member creates it and passes it to the test.
"""

import errno
import http.client
import json
import selectors
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from ebpflb.lab import Member
from tests.e2e.harness.waiting import wait_until

_MAKE = """
import socket, sys
channel, count, family, kind = map(int, sys.argv[1:])
made = [socket.socket(family, kind) for _ in range(count)]
socket.send_fds(socket.socket(fileno=channel), [b"."], [each.fileno() for each in made])
"""
LISTENER = "listener"
_ANSWER = json.dumps({"pod": LISTENER}).encode() + b"\n"
_PATIENCE, _SHORT = 20.0, 0.2
_SECONDS = 0.05
_MOST_BYTES = 65536
_ATTEMPTS = 20
# linux/in.h and in6.h
_IP_MTU, _IPV6_MTU = 14, 24


@contextmanager
def opened(member: Member, version: int, protocol: str = "tcp") -> Iterator[socket.socket]:
    """A socket of IP version 4 or 6 with a timeout."""
    with several(member, version, protocol, 1) as made:
        yield made[0]


@contextmanager
def several(
    member: Member, version: int, protocol: str, count: int
) -> Iterator[list[socket.socket]]:
    """So many of them, up to 253."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    here, there = socket.socketpair()
    with here, there:
        arguments = map(str, (there.fileno(), count, int(family), int(kind)))
        command = [sys.executable, "-I", "-S", "-c", _MAKE, *arguments]
        member.exec(command, pass_fds=[there.fileno()])
        _, fds, _, _ = socket.recv_fds(here, 1, count)
    with ExitStack() as stack:
        made = [stack.enter_context(socket.socket(fileno=each)) for each in fds]
        for each in made:
            each.settimeout(_PATIENCE)
        yield made


@contextmanager
def connected(
    member: Member, address: str, port: int, protocol: str = "tcp"
) -> Iterator[socket.socket]:
    """A connected socket."""
    with opened(member, version_of(address), protocol) as made:
        made.connect((address, port))
        yield made


def version_of(address: str) -> int:
    """4 or 6."""
    return 6 if ":" in address else 4


def exchange(connection: socket.socket, line: bytes = b"") -> str:
    """Sends one line and returns the reply; for an empty line, that is the pod's name."""
    connection.sendall(line + b"\n")
    answer = b""
    while connection.type == socket.SOCK_DGRAM or not answer.endswith(b"\n"):
        received = connection.recv(_MOST_BYTES)
        assert received, "the pod closed the connection"
        answer += received
        if connection.type == socket.SOCK_DGRAM:
            break
    return answer.decode().strip()


def wait_answered(datagrams: socket.socket, pod: str) -> None:
    """Send on a connected UDP socket until this pod replies."""
    datagrams.settimeout(_SHORT)

    def is_answered() -> bool:
        with suppress(TimeoutError):
            return exchange(datagrams) == pod
        return False

    wait_until(is_answered, f"{pod} answers the flow")
    datagrams.settimeout(_PATIENCE)


def send_and_hear(unconnected: socket.socket, address: str, port: int) -> str:
    """Sends one datagram and returns the reply, whoever sent it: the pod's name."""
    unconnected.sendto(b"\n", (address, port))
    answer, peer = unconnected.recvfrom(_MOST_BYTES)
    assert peer[:2] == (address, port)
    return answer.decode()


def echo(connection: socket.socket, body: bytes) -> bytes:
    """Sends a body over a connected TCP socket and returns the echo."""
    conversation = http.client.HTTPConnection("pod")
    conversation.sock = connection
    conversation.request("POST", "/echo", body)
    return conversation.getresponse().read()


def echoed(udp: socket.socket, text: bytes) -> bytes:
    """Sends a datagram over a connected socket and returns the echo, or nothing.

    The first attempt may only discover the path MTU.
    """
    udp.settimeout(_PATIENCE / _ATTEMPTS)
    for _ in range(_ATTEMPTS):
        try:
            udp.send(b"echo " + text)
            return udp.recv(_MOST_BYTES)
        except TimeoutError:
            continue
        except OSError as error:
            if error.errno != errno.EMSGSIZE:
                raise
    return b""


def path_mtu(made: socket.socket) -> int:
    """The path MTU of a connected socket."""
    if made.family == socket.AF_INET:
        return made.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    return made.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)


@contextmanager
def listening(member: Member, addresses: list[str], port: int) -> Iterator[None]:
    """A server at these addresses that replies with LISTENER."""
    ended = threading.Event()
    with ExitStack() as stack, selectors.DefaultSelector() as ready:
        for address in addresses:
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                made = stack.enter_context(_bound(member, address, port, kind))
                ready.register(made, selectors.EVENT_READ)
        thread = threading.Thread(target=_serve, args=(ready, ended, stack))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _bound(member: Member, address: str, port: int, kind: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with member.entered():
        made = socket.socket(family, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    made.bind((address, port))
    if kind == socket.SOCK_STREAM:
        made.listen()
    made.setblocking(False)
    return made


def _serve(ready: selectors.BaseSelector, ended: threading.Event, stack: ExitStack) -> None:
    while not ended.is_set():
        for key, _ in ready.select(_SECONDS):
            made = key.fileobj
            assert isinstance(made, socket.socket)
            with suppress(OSError):
                if made.type == socket.SOCK_DGRAM:
                    _, peer = made.recvfrom(100)
                    made.sendto(_ANSWER, peer)
                elif made.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                    ready.register(stack.enter_context(made.accept()[0]), selectors.EVENT_READ)
                elif made.recv(100):
                    made.send(_ANSWER)
                else:
                    ready.unregister(made)
