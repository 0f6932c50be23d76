# SPDX-License-Identifier: Apache-2.0
"""Streams a command's output from every node, also when agents are replaced or nodes are added.

The threads are daemons: a reader that stops, or Ctrl-C, does not have to wait for them.
"""

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from queue import Empty, Full, Queue
from typing import Protocol

from ebpflb.errors import EbpflbError

_PAUSE_SECONDS = 5.0
_LOOK_SECONDS = 30.0
_WAITING_LINES = 1000
_STOP_SECONDS = 0.5

# Yields the lines of one node as they arrive, and an empty line now and then.
Lines = Callable[[], Generator[str, None, None]]


@dataclass(frozen=True, slots=True)
class StreamState:
    """Comes between lines: the stream runs, or has ended, and why. Reported for every attempt."""

    runs: bool
    why: str = ""


class NodeStreams(Protocol):
    """What all nodes tell, whatever way it takes."""

    def start(self) -> None:
        """EbpflbError if there is nothing to follow."""
        ...

    def stop(self) -> None:
        """End soon, and begin nothing again."""
        ...

    def __iter__(self) -> Iterator[tuple[str, str | StreamState]]:
        """Yield each node's lines and states until `stop()`."""
        ...


class Streams:
    """Begins with `start()`; iterating yields each node's lines and states until `stop()`.

    A stream that ends is restarted after a pause and a new look-up of the agents, because the
    node's agent may be another pod by then. One look-up serves all streams that ended before it.
    The pauses grow while a node does not answer.
    """

    def __init__(
        self,
        find: Callable[[], Mapping[str, Lines]],
        pause_seconds: float = _PAUSE_SECONDS,
        look_seconds: float = _LOOK_SECONDS,
    ) -> None:
        """`find`: returns the current nodes. If it raises EbpflbError, the old ones stay."""
        self._find = find
        self._pause_seconds, self._look_seconds = pause_seconds, look_seconds
        self._lines: Mapping[str, Lines] = {}
        self._followed: set[str] = set()
        self._looking = threading.Lock()
        self._looked = 0.0
        self._queue: Queue[tuple[str, str | StreamState]] = Queue(_WAITING_LINES)
        self._stopped = threading.Event()

    def start(self) -> None:
        """EbpflbError if there is nothing to follow."""
        self._look()
        _start(self._look_for_others)

    def stop(self) -> None:
        """Restart nothing. Each stream ends with its next line, which may be an empty one."""
        self._stopped.set()

    def __iter__(self) -> Iterator[tuple[str, str | StreamState]]:
        while not self._stopped.is_set():
            with suppress(Empty):
                yield self._queue.get(timeout=_STOP_SECONDS)

    def _look_for_others(self) -> None:
        while not self._stopped.wait(self._look_seconds):
            with self._looking, suppress(EbpflbError):
                self._look()

    def _look(self) -> None:
        self._looked = time.monotonic()
        self._lines = self._find()
        for node in self._lines.keys() - self._followed:
            self._followed.add(node)
            _start(self._follow, node)

    def _follow(self, node: str) -> None:
        pause = self._pause_seconds
        while (lines := self._lines.get(node)) and not self._stopped.is_set():
            end = StreamState(runs=False, why="the agent has stopped")
            try:
                with closing(_begun(lines)) as stream:
                    for what in stream:
                        pause = self._pause_seconds
                        self._put(node, what)
                        if self._stopped.is_set():
                            return
            except EbpflbError as error:
                end = StreamState(runs=False, why=str(error))
            except Exception as error:  # noqa: BLE001  the reader is told, and other nodes go on
                end = StreamState(runs=False, why=f"unexpected {type(error).__name__}: {error}")
            self._put(node, end)
            self._wait(pause)
            pause = min(2 * pause, self._look_seconds)
        self._followed.discard(node)

    def _wait(self, seconds: float) -> None:
        """Wait, then look up the agents, unless that happened meanwhile."""
        begin = time.monotonic()
        if not self._stopped.wait(seconds):
            with self._looking, suppress(EbpflbError):
                if self._looked <= begin:
                    self._look()

    def _put(self, node: str, what: str | StreamState) -> None:
        """Wait while the reader is slow. Empty lines are not queued."""
        while what and not self._stopped.is_set():
            with suppress(Full):
                return self._queue.put((node, what), timeout=_STOP_SECONDS)
        return None


def _begun(lines: Lines) -> Generator[str | StreamState, None, None]:
    """Yield the state "runs", then all lines, including empty ones."""
    with closing(lines()) as stream:
        for number, line in enumerate(stream):
            if number == 0:
                yield StreamState(runs=True)
            yield line


def _start(work: Callable[..., None], *given: object) -> None:
    threading.Thread(target=work, args=given, name="ebpflb-stream", daemon=True).start()
