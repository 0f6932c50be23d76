# SPDX-License-Identifier: Apache-2.0
"""Network namespaces and veths for one test."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from ebpflb.dataplane.kernel import libc
from tests.e2e.harness.waiting import repeated
from tests.own import own_name

NAMESPACES = Path("/run/netns")
PEER, OWN, PORT = "192.0.2.1", "192.0.2.2", 5000
_PATIENCE, _SOON = 60.0, 0.1


class Network:
    """Named network namespaces. The calling thread moves to the first one, which has only `lo`."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        """`stack` undoes everything."""
        self._stack = stack
        self.path = self.add()
        stack.enter_context(entered(self.path))
        ip("link set lo up")

    def add(self) -> Path:
        """Make one more namespace."""
        name = own_name(str(time.monotonic_ns()))
        run("ip", "netns", "add", name)
        self._stack.callback(run, "ip", "netns", "del", name)
        return NAMESPACES / name

    def add_pod(self, veth: str, inside: str = "eth0") -> Path:
        """Make a namespace and a veth into it, whose end in this namespace is called `veth`."""
        path = self.add()
        ip(f"link add {veth} type veth peer name {inside} netns {path.name}\nlink set {veth} up")
        with entered(path):
            ip(f"link set lo up\nlink set {inside} up")
        return path


class Wire:
    """UDP from a namespace behind the veth `name` to this one, and back."""

    def __init__(self, network: Network, name: str) -> None:
        peer = network.add_pod(name)
        ip(f"addr add {OWN}/24 dev {name}")
        with entered(peer):
            ip(f"addr add {PEER}/24 dev eth0")
            self._there = _receiver(PEER)
        self._here = _receiver(OWN)
        self.ifindex = socket.if_nametoindex(name)
        assert self.comes_in()
        assert self.goes_out()

    def close(self) -> None:
        """Close both sockets."""
        self._here.close()
        self._there.close()

    def comes_in(self) -> bool:
        """Whether a packet from the peer arrives; waits for it."""
        self.send_in()
        return _arrives(self._here, _PATIENCE)

    def goes_out(self) -> bool:
        """Whether a packet arrives at the peer; waits for it."""
        self._send_out()
        return _arrives(self._there, _PATIENCE)

    def is_closed_in(self) -> bool:
        """Whether no packet from the peer arrives soon."""
        self.send_in()
        return not _arrives(self._here, _SOON)

    def is_closed_out(self) -> bool:
        """Whether no packet arrives at the peer soon."""
        self._send_out()
        return not _arrives(self._there, _SOON)

    def _send_out(self) -> None:
        # A drop at egress is ENOBUFS.
        with contextlib.suppress(OSError):
            self._here.sendto(b"out", (PEER, PORT))

    def send_in(self) -> None:
        """Let the peer send a packet."""
        self._there.sendto(b"in", (OWN, PORT))

    @contextlib.contextmanager
    def flood(self) -> Iterator[list[None]]:
        """Have the peer send as fast as it can inside the block; the list grows with each packet
        sent.
        """
        sent: list[None] = []

        def send() -> None:
            self.send_in()
            sent.append(None)

        with repeated(send):
            yield sent

    def has_come_in(self) -> bool:
        """Whether any packet from the peer has arrived."""
        return _arrives(self._here, _SOON)


def ip(commands: str) -> None:
    """Run lines of ip(8) in the namespace of the calling thread."""
    run("ip", "-batch", "-", stdin=commands + "\n")


def tc(command: str) -> str:
    """Run tc(8) in the namespace of the calling thread and return what it wrote."""
    return run("tc", *command.split())


def run(*command: str, stdin: str = "") -> str:
    """Run a command to its end and return what it wrote."""
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
    return done.stdout


@contextlib.contextmanager
def entered(namespace: Path) -> Iterator[None]:
    """Put the calling thread into a network namespace inside the block."""
    with open("/proc/thread-self/ns/net") as home, namespace.open() as there:
        libc.enter_network_namespace(there.fileno())
        try:
            yield
        finally:
            libc.enter_network_namespace(home.fileno())


def _receiver(address: str) -> socket.socket:
    receiver = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    receiver.bind((address, PORT))
    return receiver


def _arrives(receiver: socket.socket, seconds: float) -> bool:
    receiver.settimeout(seconds)
    try:
        return bool(receiver.recv(16))
    except TimeoutError:
        return False
