# SPDX-License-Identifier: Apache-2.0
"""The table of pairs as a page of the documentation."""

from collections.abc import Iterator
from pathlib import Path

from tests.pairs.table import TABLE

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/annotations-together.md"

_HEAD = """\
# Annotations together

What two [annotations](words.md#annotations) of one Service do together. **With a pair that is not
in the table, each of the two does what [services.md](../services.md) says of it.** Whatever the
annotations are, TCP and UDP, IPv4 and IPv6 are served from pods, nodes and outside. The prefix
`ebpflb.io/` is left out below.

| annotations | together | proof |
| --- | --- | --- |
"""

_TAIL = """
`python -m tests.pairs` writes this page from `tests/pairs/table.yaml`, and a test compares them.
`tests/unit/model/extensions/test_pairs.py` looks at each value of each annotation beside each value
of each other one: the model of a node shows the effects of both, except where the table says
otherwise. `tests/e2e/extensions/test_pairs.py` has Services in which every two values meet, and
real clients.
"""


def render() -> str:
    return _HEAD + "".join(_rows()) + _TAIL


def _rows() -> Iterator[str]:
    for row in TABLE:
        path, _, test = row.proof.partition("::")
        proof = f"[{test.removeprefix('test_').replace('_', ' ')}](../../{path})"
        yield f"| {_short(row.first)}, {_short(row.second)} | {row.text} | {proof} |\n"


def _short(annotation: str) -> str:
    return f"`{annotation.partition('/')[2]}`"
