# SPDX-License-Identifier: Apache-2.0
"""Label selectors: one error in one line, or a selector that matches what it says."""

from collections.abc import Iterator
from contextlib import contextmanager

from ebpflb.config.label_selector import LabelSelector, parse_label_selector
from tests.fuzz.targets import Play, Target, check_line

_SEEDS = [b"", b"a=b", b"a==b,c!=d", b"e in (x,y),f notin (z)", b"g,!h", b"a.b/c in (,x)", b"a="]
_WORDS = [b"in", b"notin", b"==", b"!=", b"!", b"(", b")", b",", b"/", b" ", b"\xe2\x80\xa8"]


@contextmanager
def _playing() -> Iterator[Play]:
    yield _play


def _play(given: bytes) -> None:
    try:
        found = parse_label_selector(given.decode(errors="replace"))
    except ValueError as refusal:
        check_line(str(refusal))
        return
    assert parse_label_selector(_written(found)).requirements == found.requirements
    labels = dict.fromkeys(found.keys, "")
    assert found.matches(labels) == all(
        (each.values is None or "" in each.values) is each.wanted for each in found.requirements
    )


def _written(selector: LabelSelector) -> str:
    """The selector, written differently."""
    return ",".join(
        f"{each.key} {'in' if each.wanted else 'notin'} ({','.join(sorted(each.values)) or ','})"
        if each.values is not None
        else f"{'' if each.wanted else '!'}{each.key}"
        for each in selector.requirements
    )


TARGET = Target(_SEEDS, _WORDS, _playing)
