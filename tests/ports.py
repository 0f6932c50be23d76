# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that a test starts later.

Not those that the kernel gives to clients: one of them may have the port by then.
"""

import random
import socket

# Below net.ipv4.ip_local_port_range.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """One that nobody listens on, at any address."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """So many."""
    found: list[int] = []
    for port in random.sample(_PORTS, len(_PORTS)):
        if _is_free(port):
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"there are not {count} free ports")


def _is_free(port: int) -> bool:
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        with socket.create_server(("", port), family=family, dualstack_ipv6=both):
            return True
    except OSError:
        return False
