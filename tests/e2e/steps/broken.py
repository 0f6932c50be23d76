# SPDX-License-Identifier: Apache-2.0
"""Pods that stop replying."""

from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.lab import Member
from tests.e2e.harness.questions import REFUSED, SILENT

BREAK = """
add table inet broken
add chain inet broken input {{ type filter hook input priority 0; }}
add rule inet broken input tcp flags & (syn | ack) == syn {verdict}
"""
VERDICTS = {REFUSED: "reject with tcp reset", SILENT: "drop"}


@contextmanager
def broken(pod: Member, how: str) -> Iterator[None]:
    """New TCP connections to the pod are refused, or get no reply."""
    pod.exec(["nft", "-f", "-"], input=BREAK.format(verdict=VERDICTS[how]))
    try:
        yield
    finally:
        pod.exec(["nft", "delete", "table", "inet", "broken"])
