# SPDX-License-Identifier: Apache-2.0
"""Real connections in a lab: does everyone reach whom they must, and load from a namespace."""

import contextlib
import errno
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol, Self

from ebpflb.errors import EbpflbError, ProbeError
from ebpflb.lab import load
from ebpflb.lab.load import LoadOptions, LoadResult

_ATTEMPT_SECONDS = 0.5
_PAUSE = 0.02
_AT_ONCE = 256


class Source(Protocol):
    """Where connections come from: a member of the lab."""

    @property
    def name(self) -> str: ...

    def entered(self) -> AbstractContextManager[None]:
        """Sockets made meanwhile belong to the source's namespace."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """From a member to an address. pod: who must answer; "" when a refusal is answer enough."""

    source: Source
    address: str
    port: int
    pod: str = ""

    def __str__(self) -> str:
        return f"{self.source.name} to {self.pod or 'a node'} ({self.address} port {self.port})"


def wait_reachable(attempts: Sequence[Attempt], timeout: float) -> None:
    """Try all attempts until each has worked once. ProbeError names one that did not in time."""
    deadline = time.monotonic() + timeout
    failed = dict.fromkeys(attempts, "")
    while failed:
        failed = dict(_try_all(list(failed)))
        if failed and time.monotonic() > deadline:
            attempt, reason = next(iter(failed.items()))
            raise ProbeError(f"{len(failed)} of {len(attempts)} paths fail; {attempt}: {reason}")
        if failed:
            time.sleep(_PAUSE)


def _try_all(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, str]]:
    for first in range(0, len(attempts), _AT_ONCE):
        yield from _try_some(attempts[first : first + _AT_ONCE])


def _try_some(attempts: Sequence[Attempt]) -> Iterator[tuple[Attempt, str]]:
    """The attempts that failed, each with the reason. All connect at the same time."""
    deadline = time.monotonic() + _ATTEMPT_SECONDS
    with contextlib.ExitStack() as opened:
        for attempt, sock in list(_connect(attempts, opened)):
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            if reason := _converse(sock, attempt):
                yield attempt, reason


def _connect(
    attempts: Sequence[Attempt], opened: contextlib.ExitStack
) -> Iterator[tuple[Attempt, socket.socket]]:
    for source, group in groupby(attempts, key=lambda attempt: attempt.source):
        with source.entered():
            for attempt in group:
                family = socket.AF_INET6 if ":" in attempt.address else socket.AF_INET
                sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
                opened.enter_context(sock)
                sock.connect_ex((attempt.address, attempt.port))
                yield attempt, sock


def _converse(sock: socket.socket, attempt: Attempt) -> str:
    """Why the attempt failed, or "". sendall() raises the error of a failed connect."""
    try:
        sock.sendall(b"\n")
        answer = sock.recv(256).decode().strip() if attempt.pod else ""
    except ConnectionRefusedError:
        return "refused" if attempt.pod else ""
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "" if answer == attempt.pod else f"answered by {answer!r}"


Popen = Callable[..., "subprocess.Popen[Any]"]

_START_TIMEOUT = 10.0
# Beyond the time that the slowest connection may take.
_STOP_TIMEOUT = 10.0


class LoadRun:
    """A load under way. It writes into a file, so it never waits for its reader.

    As a context manager it does not outlive the block; what it found is lost if nobody asked.
    """

    def __init__(self, popen: Popen, address: str, port: int, options: LoadOptions) -> None:
        self._options = options
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the run
        script = [sys.executable, "-I", "-S", str(Path(load.__file__))]
        self._process = popen(
            [*script, *options.arguments(), "--", address, str(port)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_started(self) -> None:
        """Return when connections are being made. EbpflbError if that does not come."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._text().startswith(load.STARTED):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._text().strip()[-500:]
                self.kill()
                raise EbpflbError(f"the load did not start: {said}")
            time.sleep(0.005)

    def result(self, timeout: float | None = None) -> LoadResult:
        """Wait for the end and count. EbpflbError when it does not end or broke off."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise EbpflbError(f"the load was still running after {timeout} s") from error
        try:
            return load.parse_output(self._text())
        except ValueError as error:
            raise EbpflbError(f"{error}: {self._text().strip()[-500:]}") from error
        finally:
            self._output.close()

    def stop(self) -> LoadResult:
        """No new connections; the result when those under way have ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.result(self._options.timeout + _STOP_TIMEOUT)

    def kill(self) -> None:
        """End it without a result; nothing happens if it has ended."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _text(self) -> str:
        self._output.flush()
        self._output.seek(0)
        return self._output.read()
