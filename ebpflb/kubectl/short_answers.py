# SPDX-License-Identifier: Apache-2.0
"""Collects the short answers of all nodes, and finds out what their digests stand for.

One ready node is asked for its full answer at the same time, which normally explains every digest.
If other nodes have digests that it does not, one of them is asked about those. A node may change or
stop answering meanwhile: nodes whose answers are still not understood are then asked once more.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.cluster import Cluster
from ebpflb.kubectl.execution import AgentAnswer

Answer = TypeVar("Answer", bound=Iterable[str])
Meaning = TypeVar("Meaning")

_TRIES = 2
# Digests go into a URL. With more than these, the node is asked for everything.
_MOST_DIGESTS = 100
_NOT_UNDERSTOOD = (
    "changes faster than it can be read, or sends what this version cannot read: the output may be "
    "incomplete"
)


@dataclass(frozen=True, slots=True)
class ShortAndWhole(Generic[Answer, Meaning]):
    """Commands for the same answer, short or in full, and the parsers of their output.

    read_whole: also returns what each digest stands for.
    """

    short: Sequence[str]
    whole: Sequence[str]
    read_short: Callable[[RemoteAgent, Any], Answer]
    read_whole: Callable[[RemoteAgent, Any], tuple[Answer, Mapping[str, Meaning]]]


class ShortAnswers(Generic[Answer, Meaning]):
    """May be asked repeatedly. known: digest -> what it stands for, for the digests in use."""

    def __init__(self, cluster: Cluster) -> None:
        self.known: dict[str, Meaning] = {}
        self._cluster = cluster

    def ask(
        self, commands: ShortAndWhole[Answer, Meaning]
    ) -> tuple[dict[RemoteAgent, Answer], list[RemoteAgent]]:
        """The answers by node, and the nodes whose answers are not fully understood, also noted."""
        answers: dict[RemoteAgent, Answer] = {}
        agents, asked = list(self._cluster.agents), set[RemoteAgent]()
        for _ in range(_TRIES):
            for agent in agents:
                answers.pop(agent, None)
            answers.update(self._short(commands, agents))
            # Prefer nodes that have not been asked for details yet.
            holders = {agent: answers[agent] for agent in sorted(answers, key=asked.__contains__)}
            wanted = self._wanted(holders)
            asked.update(wanted)
            for silent in wanted.keys() - self._details(commands, wanted):
                del answers[silent]
            agents = [each for each, answer in answers.items() if not self._is_known(answer)]
            if not agents:
                break
        for agent in agents:
            self._cluster.note(agent, _NOT_UNDERSTOOD)
        in_use = {digest for answer in answers.values() for digest in answer}
        self.known = {digest: each for digest, each in self.known.items() if digest in in_use}
        return answers, agents

    def _short(
        self, commands: ShortAndWhole[Answer, Meaning], agents: Sequence[RemoteAgent]
    ) -> Iterator[tuple[RemoteAgent, Answer]]:
        asked = dict.fromkeys(agents, commands.short)
        if not self.known:
            asked |= dict.fromkeys([each for each in agents if each.is_ready][:1], commands.whole)
        for each in self._cluster.ask_each(asked):
            if asked[each.agent] is commands.whole:
                yield from self._whole(commands, each)
            else:
                yield from self._cluster.decoded(each, commands.read_short)

    def _details(
        self,
        commands: ShortAndWhole[Answer, Meaning],
        wanted: Mapping[RemoteAgent, Sequence[str]],
    ) -> set[RemoteAgent]:
        """Ask each node about its digests; returns the nodes that answered."""
        asked = {agent: [*commands.whole, *_selection(each)] for agent, each in wanted.items()}
        return {
            agent
            for answer in self._cluster.ask_each(asked)
            for agent, _ in self._whole(commands, answer)
        }

    def _whole(
        self, commands: ShortAndWhole[Answer, Meaning], answer: AgentAnswer
    ) -> Iterator[tuple[RemoteAgent, Answer]]:
        for agent, (short, meanings) in self._cluster.decoded(answer, commands.read_whole):
            self.known.update(meanings)
            yield agent, short

    def _wanted(self, answers: Mapping[RemoteAgent, Iterable[str]]) -> dict[RemoteAgent, list[str]]:
        """Assign each unknown digest to the first node that has it."""
        wanted = defaultdict[RemoteAgent, list[str]](list)
        given = set(self.known)
        for agent, digests in answers.items():
            for digest in digests:
                if digest not in given:
                    given.add(digest)
                    wanted[agent].append(digest)
        return wanted

    def _is_known(self, answer: Iterable[str]) -> bool:
        return all(digest in self.known for digest in answer)


def _selection(digests: Sequence[str]) -> list[str]:
    return [f"--digest={each}" for each in digests] if len(digests) <= _MOST_DIGESTS else []
