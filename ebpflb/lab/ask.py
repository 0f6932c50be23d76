# SPDX-License-Identifier: Apache-2.0
"""Asks an address which pod answers and which client it sees (echo.py), a connection each time.

Standard library only and started by path inside a namespace. Prints a JSON list per question, with
the pod's answer each time, or {"error": ...}.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, NamedTuple


class Question(NamedTuple):
    """Where to, and how many times. timeout: seconds for one answer."""

    address: str
    port: int
    protocol: str = "tcp"
    times: int = 1
    timeout: float = 2.0


def ask(member: Any, question: Question) -> list[dict[str, Any]]:
    """Ask from a member of a lab; PodIdentity.describe makes a pod's answer."""
    return ask_at_once(member, [question])[0]


def ask_at_once(member: Any, questions: Sequence[Question]) -> list[list[dict[str, Any]]]:
    """Ask all questions at the same time, in one process; the answers to each."""
    script = [sys.executable, "-I", "-S", __file__]
    words = [str(word) for question in questions for word in question]
    longest = max(question.times * question.timeout for question in questions)
    done: subprocess.CompletedProcess[str] = member.exec([*script, *words], timeout=30 + longest)
    return [json.loads(line) for line in done.stdout.splitlines()]


def answers(question: Question) -> Iterator[str]:
    family = socket.AF_INET6 if ":" in question.address else socket.AF_INET
    is_tcp = question.protocol == "tcp"
    with ExitStack() as kept:
        for _ in range(question.times):
            made = socket.socket(family, socket.SOCK_STREAM if is_tcp else socket.SOCK_DGRAM)
            # The port of a UDP socket that is closed may be the next one's: the same flow.
            kept.enter_context(made)
            yield _answer(made, question)
            if is_tcp:
                made.close()


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
    questions = [Question(to, int(port), how, int(n), float(s)) for to, port, how, n, s in fields]
    with ThreadPoolExecutor(len(questions)) as executor:
        for line in executor.map(lambda question: ",".join(answers(question)), questions):
            print(f"[{line}]")


if __name__ == "__main__":
    main(sys.argv[1:])
