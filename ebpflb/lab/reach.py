# SPDX-License-Identifier: Apache-2.0
"""Tries that everybody in a lab reaches whom it must, by real connections."""

import contextlib
import errno
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from ebpflb.errors import ProbeError

_ATTEMPT = 0.5
_PAUSE = 0.02
_AT_ONCE = 256


class Source(Protocol):
    """Where connections come from: a member of the lab."""

    @property
    def name(self) -> str:
        """For messages."""
        ...

    def entered(self) -> AbstractContextManager[None]:
        """Sockets made meanwhile belong to the source's namespace."""
        ...


@dataclass(frozen=True, slots=True)
class Path:
    """From a member to an address. pod: who must answer; "" when a refusal is answer enough."""

    source: Source
    address: str
    port: int
    pod: str = ""

    def __str__(self) -> str:
        return f"{self.source.name} to {self.pod or 'a node'} ({self.address} port {self.port})"


def wait_reachable(paths: Sequence[Path], timeout: float) -> None:
    """Try all paths until each has worked once. ProbeError names one that did not in time."""
    deadline = time.monotonic() + timeout
    failed = dict.fromkeys(paths, "")
    while failed:
        failed = dict(_try_all(list(failed)))
        if failed and time.monotonic() > deadline:
            path, reason = next(iter(failed.items()))
            raise ProbeError(f"{len(failed)} of {len(paths)} paths fail; {path}: {reason}")
        if failed:
            time.sleep(_PAUSE)


def _try_all(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    for first in range(0, len(paths), _AT_ONCE):
        yield from _try_some(paths[first : first + _AT_ONCE])


def _try_some(paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """The paths that failed, each with the reason. All connect at the same time."""
    deadline = time.monotonic() + _ATTEMPT
    with contextlib.ExitStack() as opened:
        for path, sock in list(_connect(paths, opened)):
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            if reason := _converse(sock, path):
                yield path, reason


def _connect(
    paths: Sequence[Path], opened: contextlib.ExitStack
) -> Iterator[tuple[Path, socket.socket]]:
    for source, group in groupby(paths, key=lambda path: path.source):
        with source.entered():
            for path in group:
                family = socket.AF_INET6 if ":" in path.address else socket.AF_INET
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                opened.enter_context(sock)
                sock.connect_ex((path.address, path.port))
                yield path, sock


def _converse(sock: socket.socket, path: Path) -> str:
    """Why the path does not work, or "". An attempt to connect that failed is told by sendall."""
    try:
        sock.sendall(b"\n")
        answer = sock.recv(256).decode().strip() if path.pod else ""
    except ConnectionRefusedError:
        return "refused" if path.pod else ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "" if answer == path.pod else f"answered by {answer!r}"
