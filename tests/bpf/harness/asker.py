# SPDX-License-Identifier: Apache-2.0
"""A process in a cgroup that connects, and reports where the kernel connects it to.

connect() sends no packet: a TCP socket in repair mode is connected at once. The getpeername hook is
not attached there, because it would report the frontend.
"""

import errno
import socket
from sys import byteorder

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.kernel.namespaces import own_cookie
from ebpflb.dataplane.layout.enums import NetnsFlag
from ebpflb.dataplane.layout.structs import LbNetns
from ebpflb.model.address import Protocol
from tests.bpf.harness.asked import Asked, answer
from tests.bpf.harness.packets import End

_TCP_REPAIR = 19


class Asker(Asked):
    """The other end of the process."""

    def connect(self, target: End, proto: Protocol) -> End | int:
        """The address that the socket is connected to, or the errno."""
        found = self.ask(*target, proto)
        return found if isinstance(found, int) else End(*found)

    def send(self, target: End) -> None:
        """Send one datagram from an unconnected socket."""
        assert self.ask(*target, None) == 0


def say_who_asks(maps: MapSet, flags: NetnsFlag | int) -> None:
    """Set what the socket hooks take the process for; without flags, an unknown pod."""
    key = own_cookie().to_bytes(8, byteorder)
    maps["lb_netns"].delete(key)
    if flags:
        maps["lb_netns"].update(key, bytes(LbNetns(flags=flags)))


def _answer(address: str, port: int, proto: int | None) -> End | int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    target = (address, port)
    return _send(family, target) if proto is None else _connect(family, target, proto)


def _send(family: int, target: tuple[str, int]) -> int:
    with socket.socket(family, socket.SOCK_DGRAM) as client:
        client.sendto(b"asked", target)
    return 0


def _connect(family: int, target: tuple[str, int], proto: int) -> End | int:
    kind = socket.SOCK_STREAM if proto == Protocol.TCP else socket.SOCK_DGRAM
    with socket.socket(family, kind) as client:
        if proto == Protocol.TCP:
            client.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
        try:
            client.connect(target)
        except OSError as error:
            return error.errno or errno.EIO
        return End(*client.getpeername()[:2])


if __name__ == "__main__":
    answer(_answer)
