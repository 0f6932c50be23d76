# SPDX-License-Identifier: Apache-2.0
"""Listens at an address of the agent.

If that fails, it warns once and keeps trying, because the node's Services do not depend on it.
"""

import logging
import os
import socket
import threading
from collections.abc import Callable

from ebpflb.errors import ConfigError
from ebpflb.log import fields
from ebpflb.web.answers import Respond
from ebpflb.web.server import MOST_CONNECTIONS, Clients, Encryption, HttpServer

_log = logging.getLogger("ebpflb.observe")

RETRY_SECONDS = 5.0


class Listener:
    """Answers at what `open_socket()` returns, from `start()` until `stop()`."""

    failed, recovered = "cannot listen", "listening"
    most_clients = MOST_CONNECTIONS

    def __init__(
        self,
        server: HttpServer,
        address: str,
        open_socket: Callable[[], socket.socket],
        respond: Respond,
        *,
        retry: float = RETRY_SECONDS,
        encryption: Encryption | None = None,
    ) -> None:
        """`address`: as logs show it; `retry`: seconds.

        `open_socket` raises OSError or ConfigError.
        """
        self.socket: socket.socket | None = None
        self.clients = Clients(self.most_clients)
        self._server = server
        self._address = address
        self._open_socket = open_socket
        self._respond = respond
        self._retry = retry
        self._encryption = encryption
        self._stopped = threading.Event()
        self._trying: threading.Thread | None = None

    def start(
        self, *, hard_fail: bool = False, on_failure: Callable[[str], None] = lambda _: None
    ) -> None:
        """Listen, if possible. `hard_fail`: ConfigError if it is not.

        `on_failure` gets the address and the reason.
        """
        error = self._try_to_listen()
        if not error:
            return
        _log.warning("%s: %s; retrying", self.failed, error, extra=fields(address=self._address))
        on_failure(f"{self._address}: {error}")
        if hard_fail:
            raise ConfigError(f"{self.failed} at {self._address}")
        self._trying = threading.Thread(target=self._keep_trying, name="ebpflb-bind", daemon=True)
        self._trying.start()

    def stop(self) -> None:
        """Close the socket, without waiting for answers in progress."""
        self._stopped.set()
        if self._trying:
            self._trying.join()
        if self.socket:
            self._close(self.socket)
            self.socket = None

    def _close(self, listening: socket.socket) -> None:
        self._server.close(listening)

    def _try_to_listen(self) -> str:
        """Return the reason if it cannot listen, or ""."""
        try:
            self.socket = self._open_socket()
        except ConfigError as error:
            return str(error)
        except OSError as error:
            return os.strerror(error.errno) if error.errno else str(error)
        self._server.listen(self.socket, self._respond, self.clients, self._encryption)
        return ""

    def _keep_trying(self) -> None:
        while not self._stopped.wait(self._retry):
            if not self._try_to_listen():
                _log.info(self.recovered, extra=fields(address=self._address))
                return
