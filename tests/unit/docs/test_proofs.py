# SPDX-License-Identifier: Apache-2.0
"""Tests that documents name exist, and every attack that must fail has one."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.unit.docs.documents import ROOT, documents, is_current, name, spans

_TEST = re.compile(r"tests/[\w./-]+(?:::(\w+))?")
_PAGE = ROOT / "docs/threat-model.md"


@cache
def defined(path: Path) -> frozenset[str]:
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


def is_there(span: str) -> bool:
    """Whether the file or folder exists, and the test in it."""
    place, _, test = span.partition("::")
    path = ROOT / place
    return path.exists() and (not test or test in defined(path))


@pytest.mark.parametrize("path", [*filter(is_current, documents())], ids=name)
def test_tests_that_are_named_exist(path: Path) -> None:
    named = [span for span in spans(path) if _TEST.fullmatch(span)]
    assert [span for span in named if not is_there(span)] == []


@pytest.mark.parametrize("span", ["tests/none.py", "tests/unit/docs/test_proofs.py::test_none"])
def test_a_test_that_does_not_exist_is_found(span: str) -> None:
    assert not is_there(span)


def what_ebpflb_says() -> list[str]:
    """The second column of each row of the threat model, but for the heads."""
    rows = re.findall(r"^\| (?!attack |---)(.*) \|$", _PAGE.read_text(), re.MULTILINE)
    return [row.split(" | ")[1] for row in rows]


def test_whatever_an_attacker_cannot_do_has_a_test() -> None:
    denied = [cell for cell in what_ebpflb_says() if cell.startswith("cannot")]
    assert len(denied) > 30
    assert [cell for cell in denied if not re.search(r"`tests/[\w/]+\.py::test_\w+`", cell)] == []


def test_every_row_says_whether_an_attacker_can() -> None:
    said = re.compile(r"cannot\b|can\b|only\b|they grow|their own|\[limited\]")
    assert [cell for cell in what_ebpflb_says() if not said.match(cell)] == []
