# SPDX-License-Identifier: Apache-2.0
"""The finding of a check of `ebpflb doctor`: one line, and what to do about it."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

_SHOWN = 3


class Severity(StrEnum):
    """ok and note: nothing to do. warning: something may fail. error: something does fail."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """`check`: which one found it. `where`: a device, a map, a process; empty for the node.

    `advice` is empty if there is nothing to do.
    """

    severity: Severity
    check: str
    where: str
    what: str
    advice: str = ""

    @property
    def is_trouble(self) -> bool:
        return self.severity in (Severity.WARNING, Severity.ERROR)


def examples(names: Iterable[object]) -> str:
    """The first few, and the number of the others."""
    every = [str(name) for name in names]
    more = len(every) - _SHOWN
    return ", ".join(every[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def all_well(check: str, what: str, found: Iterable[Finding]) -> list[Finding]:
    """The findings; if none of them is a problem, preceded by one that says so."""
    every = list(found)
    if any(each.is_trouble for each in every):
        return every
    return [Finding(Severity.OK, check, "", what), *every]
