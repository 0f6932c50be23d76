# SPDX-License-Identifier: Apache-2.0
"""A tunnel between two members, made of devices without a link header (like WireGuard's)."""

import fcntl
import os
import select
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ebpflb.lab import Member

DEVICE = "tun7"

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_MOST_BYTES = 65536


@contextmanager
def tunnel(ends: Sequence[tuple[Member, Sequence[str]]]) -> Iterator[None]:
    """Two members with addresses, including the prefix length; forwards packets inside the
    block.
    """
    with ExitStack() as stack:
        here, there = (stack.enter_context(_device(*end)) for end in ends)
        stop, stopped = os.pipe()
        stack.callback(os.close, stop)
        carrier = threading.Thread(target=_carry, args=(here, there, stop))
        carrier.start()
        stack.callback(carrier.join)
        stack.callback(os.close, stopped)
        yield


@contextmanager
def _device(member: Member, addresses: Sequence[str]) -> Iterator[int]:
    with member.entered():
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_CLOEXEC)
    try:
        request = struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI)
        fcntl.ioctl(fd, _TUNSETIFF, request)
        for address in addresses:
            member.exec(["ip", "address", "add", address, "dev", DEVICE])
        member.exec(["ip", "link", "set", DEVICE, "up"])
        yield fd
    finally:
        os.close(fd)


def _carry(here: int, there: int, stop: int) -> None:
    """Forward packets until the other end of `stop` is closed."""
    other = {here: there, there: here}
    while stop not in (ready := select.select([here, there, stop], [], [])[0]):
        for fd in ready:
            os.write(other[fd], os.read(fd, _MOST_BYTES))
