# SPDX-License-Identifier: Apache-2.0
"""Sockets of a member of the lab in the hands of a test.

A socket belongs for ever to the network namespace and to the cgroup of the process that made it.
So a child made inside the member makes it, and hands it over.
"""

import http.client
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.lab import Member

_MAKE = """
import socket, sys
channel, family, kind = map(int, sys.argv[1:])
made = socket.socket(family, kind)
socket.send_fds(socket.socket(fileno=channel), [b"."], [made.fileno()])
"""
_MOST_BYTES = 65536
# linux/in.h and in6.h
_IP_MTU, _IPV6_MTU = 14, 24


@contextmanager
def opened(member: Member, version: int, protocol: str = "tcp") -> Iterator[socket.socket]:
    """A socket of IP version 4 or 6 that gives up after 5 seconds."""
    family = socket.AF_INET if version == 4 else socket.AF_INET6
    kind = socket.SOCK_STREAM if protocol == "tcp" else socket.SOCK_DGRAM
    here, there = socket.socketpair()
    with here, there:
        arguments = map(str, (there.fileno(), int(family), int(kind)))
        command = [sys.executable, "-I", "-S", "-c", _MAKE, *arguments]
        member.exec(command, pass_fds=[there.fileno()])
        _, (fd,), _, _ = socket.recv_fds(here, 1, 1)
    with socket.socket(fileno=fd) as made:
        made.settimeout(5)
        yield made


@contextmanager
def connected(
    member: Member, address: str, port: int, protocol: str = "tcp"
) -> Iterator[socket.socket]:
    """A socket that is connected."""
    with opened(member, version_of(address), protocol) as made:
        made.connect((address, port))
        yield made


def version_of(address: str) -> int:
    """4 or 6."""
    return 6 if ":" in address else 4


def exchange(connection: socket.socket, line: bytes = b"") -> str:
    """One line there and one back; for an empty one that is the pod's name."""
    connection.sendall(line + b"\n")
    answer = b""
    while connection.type == socket.SOCK_DGRAM or not answer.endswith(b"\n"):
        received = connection.recv(_MOST_BYTES)
        assert received, "closed by the pod"
        answer += received
        if connection.type == socket.SOCK_DGRAM:
            break
    return answer.decode().strip()


def send_and_hear(unconnected: socket.socket, address: str, port: int) -> str:
    """One datagram there and one back, from whoever was asked: the pod's name."""
    unconnected.sendto(b"\n", (address, port))
    answer, peer = unconnected.recvfrom(_MOST_BYTES)
    assert peer[:2] == (address, port)
    return answer.decode()


def echo(connection: socket.socket, body: bytes) -> bytes:
    """Send a body over a connected TCP socket and return what comes back."""
    conversation = http.client.HTTPConnection("pod")
    conversation.sock = connection
    conversation.request("POST", "/echo", body)
    return conversation.getresponse().read()


def path_mtu(made: socket.socket) -> int:
    """How large the packets of a connected socket may be."""
    if made.family == socket.AF_INET:
        return made.getsockopt(socket.IPPROTO_IP, _IP_MTU)
    return made.getsockopt(socket.IPPROTO_IPV6, _IPV6_MTU)
