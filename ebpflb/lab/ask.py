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
    """Ask from here."""
    family = socket.AF_INET6 if ":" in question.address else socket.AF_INET
    kind = socket.SOCK_STREAM if question.protocol == "tcp" else socket.SOCK_DGRAM
    for _ in range(question.times):
        try:
            with socket.socket(family, kind) as connection:
                connection.settimeout(question.timeout)
                connection.connect((question.address, question.port))
                connection.send(_QUESTION)
                yield connection.recv(_MOST_BYTES).decode().strip()
        except OSError as error:
            yield json.dumps({"error": type(error).__name__})


def main(arguments: list[str]) -> None:
    """ADDRESS PORT PROTOCOL COUNT TIMEOUT."""
    address, port, protocol, count, timeout = arguments
    for answer in answers(Question(address, int(port), protocol, int(count), float(timeout))):
        print(answer, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
