# SPDX-License-Identifier: Apache-2.0
"""The ends of UDP sockets."""

import errno
import socket

from tests.e2e.harness.sockets import exchange
from tests.e2e.harness.waiting import wait_until

PORT = 80
PAUSE = 0.2
PATIENCE = 10.0
ENDED = (errno.ECONNABORTED, errno.EDESTADDRREQ)


def say(connection: socket.socket) -> str:
    """One exchange: the pod's name, or "ended" if the socket was destroyed."""
    try:
        return exchange(connection)
    except OSError as error:
        return "ended" if error.errno in ENDED else type(error).__name__


def ends(connection: socket.socket) -> bool:
    """Whether the client gets an error from whatever it calls, and may connect again."""
    connection.settimeout(PAUSE)
    has_ended = wait_until(lambda: say(connection) == "ended", "the socket ends")
    connection.settimeout(PATIENCE)
    return has_ended
