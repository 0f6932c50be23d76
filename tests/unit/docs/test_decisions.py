# SPDX-License-Identifier: Apache-2.0
"""Decisions: few and short, in a fixed form, on pages that the code concerned links to."""

import re
from itertools import chain
from pathlib import Path

import pytest

from tests.unit.docs.documents import ROOT, name

FOLDER = ROOT / "docs/development/decisions"
PAGES = [path for path in sorted(FOLDER.glob("*.md")) if path.name != "README.md"]
_HEADING = re.compile(r"## [\w`].{20,}[^.] \(20\d\d-\d\d-\d\d\)")
_PARTS = ("Why", "Rejected", "Evidence")


def wrong_entries(page: str) -> list[str]:
    """Headings of entries that do not have the form that README.md describes."""
    found = []
    for entry in re.split(r"^(?=## )", page, flags=re.MULTILINE)[1:]:
        heading, _, text = entry.partition("\n")
        blocks = text.strip().split("\n\n")
        parts = [block.partition(":")[0].strip("*") for block in blocks]
        in_order = parts[0] == "Why" and parts == [part for part in _PARTS if part in parts]
        if not (_HEADING.fullmatch(heading) and in_order and text.count("**") == 2 * len(parts)):
            found.append(heading)
    return found


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_entry_has_the_form(path: Path) -> None:
    assert not wrong_entries(path.read_text())


@pytest.mark.parametrize(
    "entry",
    [
        "## Something is decided as it should be\n\n**Why**: it is so.\n",
        "## Too short (2026-11-21)\n\n**Why**: it is so.\n",
        "## Something is decided as it should be (2026-11-21)\n\n**Rejected**: else.\n",
        "## Something is decided as it should be (2026-11-21)\n\n**Why**: so.\n\nAnd so on.\n",
        "## Something is decided as it should be (2026-11-21)\n\n"
        "**Why**: so.\n\n**Evidence**: 1 ns.\n\n**Rejected**: else.\n",
    ],
)
def test_an_entry_of_another_form_is_found(entry: str) -> None:
    assert len(wrong_entries(f"# Decisions\n\n{entry}")) == 1


def test_all_pages_together_stay_short() -> None:
    assert len(PAGES) >= 10
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 45_000


def test_every_page_is_named_by_what_it_is_about() -> None:
    packages = chain((ROOT / "ebpflb").rglob("__init__.py"), (ROOT / "tests").rglob("__init__.py"))
    texts = [path.read_text() for path in (*packages, ROOT / "bpf/README.md")]
    assert not [
        name(path)
        for path in PAGES
        if not any(f"docs/development/decisions/{path.name}" in text for text in texts)
    ]
