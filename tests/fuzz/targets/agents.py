# SPDX-License-Identifier: Apache-2.0
"""An agent's output for the plugin: bad output costs only that node's result."""

import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from typing import Any, NamedTuple

import click
import msgspec

from ebpflb.errors import EbpflbError
from ebpflb.kubectl import connections, doctor, explain, flows, services, status, top
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import AgentAnswer, AgentQuestion
from ebpflb.kubectl.cluster import Cluster
from ebpflb.kubectl.execution import argv_of, exit_status
from ebpflb.kubectl.ui.following import Following, NodeFeed
from ebpflb.kubectl.ui.query import GROUPS, ViewQuery
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from ebpflb.kubectl.ui.view import View
from ebpflb.model.compact import packed
from ebpflb.model.connection import OpenConnection, connection_line
from ebpflb.model.flow import Directions, FlowBackend, FlowClient, FlowFrontend, FlowService
from tests.fuzz.targets import Play, Target
from tests.fuzz.targets.api import Recorded
from tests.fuzz.targets.objects import words_of
from tests.ui.flows import flow as flow_of_the_page
from tests.ui.flows import of_node
from tests.unit.cli.explained import FRONTEND, answered
from tests.unit.cli.explained import backend as explained_backend
from tests.unit.kubectl import answers

_GOOD, _ODD = (RemoteAgent(node, "kube-system", f"ebpflb-{node}", True, "") for node in "ab")
_EVERY = {"namespace": None, "all_namespaces": True}
# Separates the odd agent's outputs for successive requests.
_NEXT = b"\0"

_SERVICES = [answers.frontend("10.1.0.1", "10.1.0.2")]
_RATES = [answers.service(answers.backend("10.1.0.1", 3.0), answers.backend("10.1.0.2"))]
_EXPLAINED = answered(
    frontend={**FRONTEND, "external_policy": "Cluster"}, backends=[explained_backend()]
)
_CONNECTION = OpenConnection(
    path="socket",
    protocol="TCP",
    state="established",
    client=FlowClient(address="10.1.0.9", port=40000, pod="default/curl"),
    frontend=FlowFrontend(address="10.96.0.10", port=80),
    service=FlowService(namespace="default", name="web", port="http"),
    backend=FlowBackend(address="10.1.0.1", port=8080, pod="default/web-0"),
    age=10.0,
    idle=1.0,
    bytes=Directions(original=5, reply=6),
)


class Asked(NamedTuple):
    """A command of the plugin. answers: output of agents, by the command.

    shows: whether output, as JSON, has the good agent's part.
    """

    command: Any
    given: Mapping[str, Any]
    answers: Mapping[str, str]
    shows: Callable[[Any], bool]


_COMMANDS = [
    Asked(
        status.status,
        {"watch": False},
        {"status": json.dumps(answers.status())},
        lambda shown: any(each["node"] == "a" and each["services"] == 3 for each in shown),
    ),
    Asked(
        doctor.doctor,
        {},
        {"doctor": json.dumps({"findings": [answers.finding("error", "no tcx", advice="do")]})},
        lambda shown: any(each["what"] == "no tcx" and "a" in each["nodes"] for each in shown),
    ),
    Asked(
        services.services,
        {"service": None, "watch": False, **_EVERY},
        {"services": msgspec.json.encode(_SERVICES).decode()},
        lambda shown: any(
            (each["service"], each["namespace"]) == ("web", "default") for each in shown
        ),
    ),
    Asked(
        top.top,
        {"watch": False, "service": None, "every": False, "backends": True}
        | {"interval": 1.0, "sort": "connections", **_EVERY}
        | dict.fromkeys(("at", "window", "by", "price")),
        {"top": msgspec.json.encode(answers.port_rows(*_RATES)).decode()},
        lambda shown: any(
            (each["service"], each["namespace"]) == ("web", "default") for each in shown
        ),
    ),
    Asked(
        flows.flows,
        {"follow": False, "last": None, **_EVERY}
        | dict.fromkeys(("service", "source", "target", "verdict", "event", "id"))
        | dict.fromkeys(("since", "until")),
        {"flows": answers.lines(answers.flow(1), answers.flow(2))},
        lambda shown: sum(each["node"] == "a" for each in shown) == 2,
    ),
    Asked(
        explain.explain,
        {"source": "host", "target": "10.96.0.10:80", "at": None, "namespace": None},
        {"explain": json.dumps(_EXPLAINED)},
        lambda shown: any("a" in each["nodes"] for each in shown),
    ),
    Asked(
        connections.connections,
        {"older": None, "source": None, "backend_gone": False, "service": None}
        | {"sort": "age", "by": None, **_EVERY},
        {"connections": connection_line(_CONNECTION).decode()},
        lambda shown: any((each["node"], each["client"]["port"]) == ("a", 40000) for each in shown),
    ),
]


class _Printed(NamedTuple):
    """The good agent prints valid output, the other one this."""

    asked: Asked
    odd: Iterator[str]

    def answer(self, agent: RemoteAgent, question: AgentQuestion) -> AgentAnswer:
        text = next(self.odd, "") if agent is _ODD else self.asked.answers[question.command]
        is_compact = "--compact" in argv_of(question)
        return AgentAnswer(agent, 0, packed(text.encode()) if is_compact else text)

    def run(self, agent: RemoteAgent, argv: Sequence[str]) -> AgentAnswer:
        raise NotImplementedError

    def stream(self, agent: RemoteAgent, argv: Sequence[str]) -> Any:
        raise NotImplementedError


@contextmanager
def _playing() -> Iterator[Play]:
    yield _play


def _play(given: bytes) -> None:
    """The first byte is the command, the second one the format."""
    if len(given) < 2:  # both
        return
    texts = [each.decode(errors="replace") for each in given[2:].split(_NEXT)]
    number = given[0] % (len(_COMMANDS) + 2)
    if number < len(_COMMANDS):
        _check(_COMMANDS[number], ("json", "table", "wide", "jsonl")[given[1] % 4], texts)
    elif number == len(_COMMANDS):
        _check_page(texts, GROUPS[given[1] % len(GROUPS)])
    else:
        with suppress(EbpflbError):
            exit_status(given[2:])


def _check(asked: Asked, output: str, texts: Sequence[str]) -> None:
    """One agent's output costs no other's, and is shown with the right error."""
    cluster = Cluster(Recorded([]), (_GOOD, _ODD), _Printed(asked, iter(texts)))
    shown, told = io.StringIO(), io.StringIO()
    with redirect_stdout(shown), redirect_stderr(told):
        try:
            asked.command.callback.__wrapped__(cluster, output=output, **asked.given)
            cluster.finish()
        except click.exceptions.Exit:
            pass
    text = shown.getvalue()
    if output == "json":
        assert asked.shows(json.loads(text, parse_constant=_refused)), text
    elif output == "jsonl":
        assert asked.shows(
            [json.loads(line, parse_constant=_refused) for line in text.splitlines()]
        )
    for line in (*text.split("\n"), *told.getvalue().split("\n")):
        assert line.isprintable(), line


def _check_page(lines: Sequence[str], group: str) -> None:
    traffic = EdgeTraffic()
    traffic.add(of_node("a", flow_of_the_page()))
    following, feed = Following(traffic, dict), NodeFeed("b")
    for line in lines:
        following._read(feed, line)
    view = View(traffic, ViewQuery(group=group))
    found = msgspec.json.encode([view.map_and_table(), view.open_line(), feed.lost])
    assert b'"shop/web"' in found


def _refused(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


_TEXTS = [each.answers for each in _COMMANDS]
_SEEDS = [
    *(
        bytes([number, output]) + _NEXT.join(text.strip().encode() for text in texts.values())
        for number, texts in enumerate(_TEXTS)
        for output in (0, 1)
    ),
    bytes([len(_COMMANDS), 0])
    + json.dumps(flow_of_the_page(time="2026-11-23T10:00:00.000000000Z")).encode()
    + b'\0{"lost": 1}',
    bytes([len(_COMMANDS) + 1, 0])
    + b'{"status": "Failure", "reason": "NonZeroExitCode", "message": "m", '
    b'"details": {"causes": [{"message": "7"}]}}',
]
_VALUES = [
    b"1e999",
    b"5e-324",
    b"-1",
    b"9" * 30,
    b"null",
    b"[]",
    b"{}",
    b'"\\u001b[2J"',
    _NEXT,
    b"\n",
]
_WORDS = {
    word
    for texts in _TEXTS
    for text in texts.values()
    for line in text.splitlines()
    for word in words_of(json.loads(line))
}
TARGET = Target(_SEEDS, [*_VALUES, *sorted(_WORDS)], _playing)
