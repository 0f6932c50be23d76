# SPDX-License-Identifier: Apache-2.0
"""One question to many agents at a time, whatever way it takes to them, and their answers."""

import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeVar

from ebpflb.from_json import from_json
from ebpflb.kubectl.access import NONSENSE, Access
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.model.compact import from_compact

Result = TypeVar("Result")

LIMIT = 32
NO_AGENT = "no agent runs on this node"
_USAGE_ERROR = 2
# What an agent prints for a command or an option that its version does not have.
_UNKNOWN = ("no such command", "no such option")


class AgentQuestion(NamedTuple):
    """What an agent is asked: a command, its options, and its arguments.

    Options are named as on the command line; one that is True has no value there.
    """

    command: str
    options: Mapping[str, str | bool] = MappingProxyType({})
    arguments: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class AgentAnswer:
    """What a command printed, and its exit status.

    status: None if the command did not run to its end; error says why, in one line.
    """

    agent: RemoteAgent
    status: int | None
    stdout: str = ""
    stderr: str = ""
    error: str = ""


class Answering(Protocol):
    """Has agents answer questions. Thread-safe."""

    def answer(self, agent: RemoteAgent, question: AgentQuestion) -> AgentAnswer:
        """What the command prints for programs: compact, lines of JSON, or JSON, as it can."""
        ...


@dataclass
class AskedAgents:
    """agents: who is asked. limit: how many at a time. failures: what went wrong -> the nodes."""

    access: Access
    agents: Sequence[RemoteAgent]
    executor: Answering
    limit: int = LIMIT
    failures: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def ask(self, question: AgentQuestion) -> Iterator[AgentAnswer]:
        """The answers of agents that ran the command to its end; failures are noted."""
        yield from self.ask_each(dict.fromkeys(self.agents, question))

    def ask_each(self, questions: Mapping[RemoteAgent, AgentQuestion]) -> Iterator[AgentAnswer]:
        """Like ask(), with a question for each agent."""
        yield from self.ask_by(
            lambda agent: self.executor.answer(agent, questions[agent]), list(questions)
        )

    def ask_by(
        self, ask: Callable[[RemoteAgent], AgentAnswer], agents: Sequence[RemoteAgent]
    ) -> Iterator[AgentAnswer]:
        """Like ask(), with what asks an agent."""
        for answer in ask_all(ask, agents, self.limit):
            if answer.status is None:
                self.note(answer.agent.node, answer.error)
            else:
                yield answer

    def ask_json(
        self, question: AgentQuestion, read: Callable[[RemoteAgent, Any], Result]
    ) -> Iterator[tuple[RemoteAgent, Result]]:
        """Yield `read` of each agent's JSON; agents whose answer it cannot read are noted."""
        for answer in self.ask(question):
            yield from self.decoded(answer, read)

    def ask_compact(
        self, question: AgentQuestion, read: Callable[[bytes], Result]
    ) -> Iterator[tuple[RemoteAgent, Result]]:
        """Like ask_json(), with the JSON of compact answers."""
        for answer in self.ask(question):
            yield from self.decoded(answer, lambda _, content: read(content), from_compact)

    def decoded(
        self,
        answer: AgentAnswer,
        read: Callable[[RemoteAgent, Any], Result],
        content_of: Callable[[str], Any] = from_json,
    ) -> Iterator[tuple[RemoteAgent, Result]]:
        """Yield `read` of an answer, or nothing if it cannot read it, which is noted."""
        if answer.status == _USAGE_ERROR or not answer.stdout.strip():
            complaint = last_line(answer.stderr) or f"exit status {answer.status} and no output"
            self.note(answer.agent.node, complaint)
            return
        try:
            found = read(answer.agent, content_of(answer.stdout))
        except NONSENSE as error:
            what = f"{type(error).__name__}: {error}"
            self.note(answer.agent.node, f"an answer that this version cannot read ({what})")
        else:
            yield answer.agent, found

    def note(self, node: str, error: str) -> None:
        """Keep an error for the report at the end."""
        self.failures[" ".join(error.split())].add(node)


def last_line(text: str) -> str:
    """The last non-empty line, without the word Error: the complaint of a command."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    last = lines[-1].removeprefix("Error: ") if lines else ""
    return f"an agent of another version: {last}" if last.lower().startswith(_UNKNOWN) else last


def ask_all(
    ask: Callable[[RemoteAgent], AgentAnswer], agents: Sequence[RemoteAgent], limit: int = LIMIT
) -> Generator[AgentAnswer, None, None]:
    """Ask all agents, at most `limit` at a time; yields answers as they arrive.

    The threads are daemons: a reader that stops, or Ctrl-C, does not have to wait for them.
    """
    answers: SimpleQueue[AgentAnswer | Exception] = SimpleQueue()

    def put(agent: RemoteAgent) -> None:
        try:
            answers.put(ask(agent))
        except Exception as error:  # noqa: BLE001  any error belongs to the reader
            answers.put(error)

    waiting = iter(agents)
    for agent in islice(waiting, limit):
        threading.Thread(target=put, args=(agent,), daemon=True).start()
    for _ in agents:
        answer = answers.get()
        for agent in islice(waiting, 1):
            threading.Thread(target=put, args=(agent,), daemon=True).start()
        if isinstance(answer, Exception):
            raise answer
        yield answer
