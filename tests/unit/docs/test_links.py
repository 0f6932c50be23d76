# SPDX-License-Identifier: Apache-2.0
"""Links between documents have targets, and every document is reachable from the first one."""

import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.unit.docs.documents import ROOT, documents, name

_BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


@cache
def anchors(path: Path) -> frozenset[str]:
    """As GitHub makes them of headings: a second one of the same text gets a number."""
    found: Counter[str] = Counter()
    names = set()
    text = _BLOCK.sub("", path.read_text())
    for heading in re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        names.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return frozenset(names)


def links(path: Path) -> Iterator[tuple[Path, str]]:
    """File and anchor."""
    for target, anchor in _LINK.findall(_BLOCK.sub("", path.read_text())):
        yield (path.parent / target).resolve() if target else path, anchor


@pytest.mark.parametrize("path", documents(), ids=name)
def test_links_lead_somewhere(path: Path) -> None:
    for target, anchor in links(path):
        assert target.exists(), f"{name(path)}: no {target}"
        assert not anchor or anchor in anchors(target), f"{name(path)}: no {name(target)}#{anchor}"


def reached(page: Path) -> Iterator[Path]:
    """The pages that a README.md links to; of a folder by its own README.md."""
    for target, _ in links(page):
        yield target
        if target.name == page.name and page.parent in target.parent.parents:
            yield from reached(target)


def test_every_page_is_in_the_tree_and_the_tree_in_the_readme() -> None:
    tree = ROOT / "docs" / "README.md"
    assert tree in {target for target, _ in links(ROOT / "README.md")}
    assert not set(tree.parent.rglob("*.md")) - set(reached(tree)) - {tree}
