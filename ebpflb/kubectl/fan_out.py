# SPDX-License-Identifier: Apache-2.0
"""One command on many agents at the same time.

The threads are daemons: a reader that stops, or Ctrl-C, does not have to wait for them.
"""

import threading
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import islice
from queue import SimpleQueue

from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.execution import AgentAnswer, Runner

LIMIT = 32


def ask_all(
    executor: Runner, agents: Sequence[RemoteAgent], argv: Sequence[str], limit: int = LIMIT
) -> Generator[AgentAnswer, None, None]:
    """Run a command on all agents, at most `limit` at a time; yields answers as they arrive."""
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


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
