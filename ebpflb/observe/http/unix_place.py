# SPDX-License-Identifier: Apache-2.0
"""A UNIX socket in the file system, for root alone."""

import socket
import stat
from pathlib import Path

from ebpflb.errors import ConfigError
from ebpflb.log import fields
from ebpflb.observe.http.listening import Words

_BACKLOG = 64
_ANSWER_SECONDS = 10.0


class UnixPlace:
    """A path to listen at.

    A socket that nobody answers at is replaced; that of a living agent is left alone, and so is
    what is no socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.words = Words("cannot answer queries", "answering queries", fields(path=str(path)))

    def listen(self) -> socket.socket:
        """A listening socket. OSError; ConfigError when the path is somebody else's."""
        self._path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        _remove_stale(self._path)
        made = socket.socket(socket.AF_UNIX)
        try:
            made.bind(str(self._path))
            # Nobody can connect before listen().
            self._path.chmod(0o600)
            made.listen(_BACKLOG)
        except OSError:
            made.close()
            raise
        return made

    def leave(self) -> None:
        """Remove the path."""
        self._path.unlink(missing_ok=True)


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError("there is something that is no socket: remove it")
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_ANSWER_SECONDS)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink(missing_ok=True)
            return
    raise ConfigError("another agent answers there: give this one another --query-socket")
