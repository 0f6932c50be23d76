# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that a test starts later, and for clients that must be refused.

Each test process has its own block, so that no other one takes a port meanwhile. None is an
ephemeral port of the kernel.
"""

import itertools
import socket
from collections.abc import Iterator
from functools import cache

# Below net.ipv4.ip_local_port_range.
_FIRST, _SIZE, _BLOCKS = 20_000, 400, 30


def free_port() -> int:
    """A port that is unused at every address."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """This many; each is reused as late as possible."""
    block = itertools.islice(_block(), _SIZE - 1)
    found = list(itertools.islice(filter(_is_free, block), count))
    assert len(found) == count, f"fewer than {count} free ports"
    return found


@cache
def _block() -> Iterator[int]:
    """The ports of a block, round robin. The first one's socket holds the block until the process
    ends.
    """
    for first in range(_FIRST, _FIRST + _SIZE * _BLOCKS, _SIZE):
        with _socket() as taken:
            try:
                taken.bind(("", first))
            except OSError:
                continue
            taken.detach()
            return itertools.cycle(range(first + 1, first + _SIZE))
    raise OSError("other test runs have all ports")


def _is_free(port: int) -> bool:
    with _socket() as probe:
        # Closed connections in TIME_WAIT do not matter.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen()
        except OSError:
            return False
    return True


def _socket() -> socket.socket:
    """For both families, if the machine has both."""
    if not socket.has_dualstack_ipv6():
        return socket.socket()
    made = socket.socket(socket.AF_INET6)
    made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return made
