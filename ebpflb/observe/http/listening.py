# SPDX-License-Identifier: Apache-2.0
"""A thread that listens at one place, and one more for each connection that somebody makes there.

Where it cannot listen, that is told once and tried again: the node's Services do not depend on it.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from ebpflb.errors import ConfigError

_log = logging.getLogger("ebpflb.observe")

RETRY_SECONDS = 5.0

_PAUSE_SECONDS = 0.1

Answer = Callable[[socket.socket, Any], None]
"""Has a connection to itself and closes it. The other end is an address as from accept()."""


class Words(NamedTuple):
    """What the log says of a place: that it cannot listen there, that it can now, and where."""

    failed: str
    mended: str
    where: Mapping[str, Any]


class Place(Protocol):
    """Where to listen."""

    words: Words

    def listen(self) -> socket.socket:
        """A listening socket. OSError; ConfigError where the place is somebody else's."""
        ...

    def leave(self) -> None:
        """Remove what `listen()` left beside the socket, which still listens."""
        ...


class Listening:
    """Takes connections at `place` until stopped; `answer` gets each in a thread of its own.

    `retry`: seconds.
    """

    def __init__(
        self, name: str, place: Place, answer: Answer, *, retry: float = RETRY_SECONDS
    ) -> None:
        self.stopped = threading.Event()
        self._place = place
        self._answer = answer
        self._retry = retry
        self._socket: socket.socket | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def port(self) -> int:
        """Of TCP: where it listens, 0 while it does not."""
        return int(self._socket.getsockname()[1]) if self._socket else 0

    def start(self, refused: Callable[[str], None] = lambda _: None) -> None:
        """Listen before this returns, if that is possible; else `refused` is told why.

        If it raises, nothing was started.
        """
        if error := self._listen():
            words = self._place.words
            _log.warning("%s: %s; trying again", words.failed, error, extra=words.where)
            refused(error)
        self._thread.start()

    def stop(self) -> None:
        """Close the socket and end the thread; answers under way are not waited for."""
        self.stopped.set()
        if self._socket:
            # As long as it listens nobody else has the place: what is removed is our own.
            self._place.leave()
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    def _listen(self) -> str:
        """Why it is not possible, empty if it is."""
        try:
            self._socket = self._place.listen()
        except ConfigError as error:
            return str(error)
        except OSError as error:
            return str(error.strerror)
        return ""

    def _run(self) -> None:
        while not self._socket and not self.stopped.wait(self._retry):
            if not self._listen():
                _log.info(self._place.words.mended, extra=self._place.words.where)
        if self._socket is None:
            return
        with self._socket as listening:
            while not self.stopped.is_set():
                try:
                    self._accept(listening)
                except OSError:
                    # No descriptor is left, or it was told to stop.
                    self.stopped.wait(_PAUSE_SECONDS)

    def _accept(self, listening: socket.socket) -> None:
        connection, client = listening.accept()
        thread = threading.Thread(
            target=self._answer, args=(connection, client), name="ebpflb-answer", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            _log.debug("no thread is left for a connection", exc_info=True)
            connection.close()
