# SPDX-License-Identifier: Apache-2.0
"""Short answers of all nodes, and what their digests stand for, asked of one node each.

Between the two questions a node may change, or fall silent: all whose answer is not understood then
are asked once more. An agent that knows no short answers is asked for all that it has.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.cluster import Cluster, is_of_older_agent

Answer = TypeVar("Answer", bound=Iterable[str])
Meaning = TypeVar("Meaning")

_TRIES = 2
# They stand in a URL. Who is asked for more is asked for all.
_MOST_DIGESTS = 100
_NOT_UNDERSTOOD = (
    "changes faster than it is read, or has what this version cannot read: what is missing here is "
    "not shown"
)


@dataclass(frozen=True, slots=True)
class ShortAndWhole(Generic[Answer, Meaning]):
    """Two commands for the same, and who reads what they print.

    An answer is made of digests. older: the whole, as agents that know no short answers print it.
    """

    short: Sequence[str]
    whole: Sequence[str]
    older: Sequence[str]
    read_short: Callable[[RemoteAgent, Any], Answer]
    read_whole: Callable[[RemoteAgent, Any], Mapping[str, Meaning]]
    read_older: Callable[[RemoteAgent, Any], tuple[Answer, Mapping[str, Meaning]]]


def ask_short(
    cluster: Cluster, commands: ShortAndWhole[Answer, Meaning], known: dict[str, Meaning]
) -> tuple[dict[RemoteAgent, Answer], list[RemoteAgent]]:
    """The answers of the nodes, and whose are not understood in full; these are noted.

    `known`: digest -> what it stands for. What is new is added.
    """
    answers: dict[RemoteAgent, Answer] = {}
    agents, asked = list(cluster.agents), set[RemoteAgent]()
    for _ in range(_TRIES):
        for agent in agents:
            answers.pop(agent, None)
        answers.update(_short(cluster, commands, agents, known))
        # Who was asked in vain comes last.
        wanted = _wanted(
            {each: answers[each] for each in sorted(answers, key=asked.__contains__)}, known
        )
        asked.update(wanted)
        for silent in wanted.keys() - _learn(cluster, commands, wanted, known):
            del answers[silent]
        agents = [each for each, answer in answers.items() if not _is_understood(answer, known)]
        if not agents:
            break
    for agent in agents:
        cluster.note(agent, _NOT_UNDERSTOOD)
    return answers, agents


def _short(
    cluster: Cluster,
    commands: ShortAndWhole[Answer, Meaning],
    agents: Sequence[RemoteAgent],
    known: dict[str, Meaning],
) -> Iterator[tuple[RemoteAgent, Answer]]:
    older = []
    for each in cluster.ask(commands.short, agents):
        if is_of_older_agent(each):
            older.append(each.agent)
        else:
            yield from cluster.decoded(each, commands.read_short)
    for agent, (answer, meanings) in cluster.ask_json(commands.older, commands.read_older, older):
        known.update(meanings)
        yield agent, answer


def _wanted(
    answers: Mapping[RemoteAgent, Iterable[str]], known: Mapping[str, Meaning]
) -> dict[RemoteAgent, list[str]]:
    """Of each digest that is not known the first node that has it."""
    wanted = defaultdict[RemoteAgent, list[str]](list)
    given = set(known)
    for agent, digests in answers.items():
        for digest in digests:
            if digest not in given:
                given.add(digest)
                wanted[agent].append(digest)
    return wanted


def _learn(
    cluster: Cluster,
    commands: ShortAndWhole[Answer, Meaning],
    wanted: Mapping[RemoteAgent, Sequence[str]],
    known: dict[str, Meaning],
) -> set[RemoteAgent]:
    """Ask each for what is wanted of it; who has answered."""
    asked = {agent: [*commands.whole, *_selection(each)] for agent, each in wanted.items()}
    answered = set()
    for answer in cluster.ask_each(asked):
        for agent, meanings in cluster.decoded(answer, commands.read_whole):
            answered.add(agent)
            known.update((each, meanings[each]) for each in wanted[agent] if each in meanings)
    return answered


def _selection(digests: Sequence[str]) -> list[str]:
    return [f"--digest={each}" for each in digests] if len(digests) <= _MOST_DIGESTS else []


def _is_understood(answer: Iterable[str], known: Mapping[str, Meaning]) -> bool:
    return all(each in known for each in answer)
