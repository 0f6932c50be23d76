# SPDX-License-Identifier: Apache-2.0
"""Asks an address who answers, and whom the pod there sees (echo.py), one connection each time.

Standard library only and started by path inside a namespace. Prints one JSON object per question:
what the pod said, or {"error": ...}.
"""

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

_QUESTION = b"who\n"
_MOST_BYTES = 65536


class Question(NamedTuple):
    """Where to, and how many times. timeout: seconds for one answer."""

    address: str
    port: int
    protocol: str = "tcp"
    times: int = 1
    timeout: float = 2.0


def ask(member: Any, question: Question) -> list[dict[str, Any]]:
    """Ask from a member of a lab; see Identity.describe for what a pod says."""
    script = [sys.executable, "-I", "-S", str(Path(__file__))]
    done: subprocess.CompletedProcess[str] = member.exec(
        [*script, *map(str, question)], timeout=30 + question.times * question.timeout
    )
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
        made.send(_QUESTION)
        return made.recv(_MOST_BYTES).decode().strip()
    except OSError as error:
        return json.dumps({"error": type(error).__name__})


def main(arguments: list[str]) -> None:
    address, port, protocol, count, timeout = arguments
    for answer in answers(Question(address, int(port), protocol, int(count), float(timeout))):
        print(answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
