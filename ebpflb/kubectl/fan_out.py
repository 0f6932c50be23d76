# SPDX-License-Identifier: Apache-2.0
"""One command on many agents at the same time.

The threads are daemons: whoever stops reading, or presses Ctrl-C, waits for none of them.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import Full, Queue, SimpleQueue

from ebpflb.errors import EbpflbError
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.execution import AgentAnswer, Executor, Runner

LIMIT = 32

_WAITING_LINES = 1000
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class StreamEnd:
    """In place of a line: the agent's stream has ended. error: why, or empty if it is complete."""

    error: str


def ask_all(
    executor: Runner, agents: Sequence[RemoteAgent], argv: Sequence[str], limit: int = LIMIT
) -> Generator[AgentAnswer, None, None]:
    """Run a command on all agents, at most `limit` at a time; the answers as they come."""
    answers: SimpleQueue[AgentAnswer | Exception] = SimpleQueue()

    def ask(agent: RemoteAgent) -> None:
        try:
            answers.put(executor.run(agent, argv))
        except Exception as error:  # noqa: BLE001  any error belongs to the reader
            answers.put(error)

    waiting = iter(agents)
    for agent in islice(waiting, limit):
        _start(partial(ask, agent))
    for _ in agents:
        answer = answers.get()
        for agent in islice(waiting, 1):
            _start(partial(ask, agent))
        if isinstance(answer, Exception):
            raise answer
        yield answer


def follow_all(
    executor: Executor, agents: Sequence[RemoteAgent], argv: Sequence[str]
) -> Generator[tuple[RemoteAgent, str | StreamEnd], None, None]:
    """The lines of all agents' streams as they come, and one StreamEnd for each agent.

    Closing the generator ends the commands.
    """
    lines = _Lines()
    try:
        for agent in agents:
            _start(partial(lines.follow, executor, agent, argv))
        left = len(agents)
        while left:
            agent, line = lines.take()
            left -= isinstance(line, StreamEnd)
            yield agent, line
    finally:
        lines.stop()


class _Lines:
    """Where streams meet. A stream waits while the reader is slow."""

    def __init__(self) -> None:
        self._queue: Queue[tuple[RemoteAgent, str | StreamEnd]] = Queue(_WAITING_LINES)
        self._stopped = threading.Event()

    def follow(self, executor: Executor, agent: RemoteAgent, argv: Sequence[str]) -> None:
        """In a thread of its own, until the stream ends or nobody reads."""
        error = ""
        try:
            with closing(executor.stream(agent, argv)) as stream:
                for line in stream:
                    if self._stopped.is_set():
                        return
                    if line:
                        self._put(agent, line)
        except EbpflbError as found:
            error = str(found)
        except Exception as found:  # noqa: BLE001  any error belongs to the reader
            error = f"unexpected {type(found).__name__}: {found}"
        self._put(agent, StreamEnd(error))

    def take(self) -> tuple[RemoteAgent, str | StreamEnd]:
        return self._queue.get()

    def stop(self) -> None:
        self._stopped.set()

    def _put(self, agent: RemoteAgent, line: str | StreamEnd) -> None:
        while not self._stopped.is_set():
            try:
                return self._queue.put((agent, line), timeout=_LOOK_SECONDS)
            except Full:
                continue
        return None


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
