# SPDX-License-Identifier: Apache-2.0
"""Asks an address which pod answers and which client it sees (echo.py), a connection each time.

Standard library only and started by path inside a namespace. Prints a JSON list per question, with
the pod's answer each time, or {"error": ...}.
"""

import json
import math
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle, islice
from typing import Any, NamedTuple, Self

# More than are asked from while a flow is remembered.
_PORTS = range(32768, 61000)
_new_ports = cycle(_PORTS)


class Question(NamedTuple):
    """Where to, and how many times. timeout: seconds for one answer.

    A pod answers within milliseconds, or seconds on a busy machine. own_port: by UDP, the first of
    so many ports to ask from; 0: of those that nobody asked from lately.
    """

    address: str
    port: int
    protocol: str = "tcp"
    times: int = 1
    timeout: float = 10.0
    own_port: int = 0

    def from_new_ports(self) -> Self:
        """The same from ports of its own: from those of earlier questions it would go on with their
        flows, and with the pods of these.
        """
        if self.protocol == "tcp" or self.own_port:
            return self
        first, *_ = islice(_new_ports, self.times)
        return self._replace(own_port=first)


def enough(pods: int) -> int:
    """With random choice, so many questions leave out one of the pods once in 10^13 times."""
    return math.ceil(math.log(pods * 1e13) / -math.log1p(-1 / pods)) if pods > 1 else 1


def ask(member: Any, question: Question) -> list[dict[str, Any]]:
    """Ask from a member of a lab; PodIdentity.describe makes a pod's answer."""
    return ask_at_once(member, [question])[0]


def ask_at_once(member: Any, questions: Sequence[Question]) -> list[list[dict[str, Any]]]:
    """Ask all questions at the same time, in one process; the answers to each."""
    script = [sys.executable, "-I", "-S", __file__]
    words = [str(word) for question in questions for word in question.from_new_ports()]
    longest = max(question.times * question.timeout for question in questions)
    done: subprocess.CompletedProcess[str] = member.exec([*script, *words], timeout=30 + longest)
    return [json.loads(line) for line in done.stdout.splitlines()]


def answers(question: Question) -> Iterator[str]:
    family = socket.AF_INET6 if ":" in question.address else socket.AF_INET
    is_tcp = question.protocol == "tcp"
    for number in range(question.times):
        with socket.socket(family, socket.SOCK_STREAM if is_tcp else socket.SOCK_DGRAM) as made:
            if not is_tcp:
                _bind(made, question.own_port + number)
            yield _answer(made, question)


def _bind(made: socket.socket, port: int) -> None:
    """To this port, or to any if somebody else has it now."""
    if port > _PORTS[-1]:
        port -= len(_PORTS)
    with suppress(OSError):
        made.bind(("", port))


def _answer(made: socket.socket, question: Question) -> str:
    try:
        made.settimeout(question.timeout)
        made.connect((question.address, question.port))
        made.send(b"who\n")
        return made.recv(65536).decode().strip()
    except OSError as error:
        return json.dumps({"error": type(error).__name__})


def main(arguments: list[str]) -> None:
    fields = zip(*[iter(arguments)] * len(Question._fields), strict=True)
    questions = [
        Question(to, int(port), how, int(times), float(timeout), int(own))
        for to, port, how, times, timeout, own in fields
    ]
    with ThreadPoolExecutor(len(questions)) as executor:
        for line in executor.map(lambda question: ",".join(answers(question)), questions):
            print(f"[{line}]")


if __name__ == "__main__":
    main(sys.argv[1:])
