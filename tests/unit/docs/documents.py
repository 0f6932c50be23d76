# SPDX-License-Identifier: Apache-2.0
"""The documents' commands, in blocks and in running text, and pieces of code."""

import re
import shlex
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import dropwhile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[3]
# How a command begins; what a command prints does not begin like this.
_PROGRAM = re.compile(
    r"\$ |([A-Z_]+=\S+ |sudo |ssh .* |\.venv/bin/)*(ebpflb|kubectl|helm|make|python)(?=\s|$)"
)
_FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?:(?<=\n\n)|(?<=^))(?: {4,}\S.*\n|\n(?= {4}))+")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_COMMENT = re.compile(r"\s+# .*$")
_ENDS = set("|;&()<>")


class Command(NamedTuple):
    """One simple command, and where it stands."""

    document: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.document}: {shlex.join(self.words)}"


@cache
def documents() -> tuple[Path, ...]:
    patterns = ("*.md", "docs/**/*.md", ".github/*.md", "bpf/*.md", "charts/ebpflb/*.md")
    return tuple(path for pattern in patterns for path in sorted(ROOT.glob(pattern)))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def is_current(path: Path) -> bool:
    """The changelog may name what is gone."""
    return path.name != "CHANGELOG.md"


def spans(path: Path) -> Iterator[str]:
    """Code in running text, a line break in it as a blank."""
    for found in _SPAN.finditer(_prose(path)):
        yield " ".join(found[1].replace("\\|", "|").split())


def _prose(path: Path) -> str:
    return _INDENTED.sub("", _FENCE.sub("", path.read_text()))


def _shown(path: Path) -> Iterator[str]:
    """Lines of blocks that are commands, and whatever in running text may be one, for a shell."""
    text = path.read_text()
    for block in (*_FENCE.findall(text), *_INDENTED.findall(_FENCE.sub("", text))):
        shown = [line.strip() for line in block.replace("\\\n", " ").splitlines()]
        yield from (line.removeprefix("$ ") for line in shown if _PROGRAM.match(line))
    for span in spans(path):
        if " " in span and _PROGRAM.match(span):
            yield span


@cache
def shell_lines() -> Mapping[str, str]:
    """Each line of shell, without its comment, and the first document that shows it."""
    found: dict[str, str] = {}
    for path in filter(is_current, documents()):
        for line in _shown(path):
            found.setdefault(" ".join(_COMMENT.sub("", line).split()), name(path))
    return found


@cache
def commands() -> tuple[Command, ...]:
    """Each once."""
    found = {
        Command(name(path), words)
        for path in filter(is_current, documents())
        for line in _shown(path)
        for words in _simple(line)
    }
    return tuple(sorted(found))


def _simple(line: str) -> Iterator[tuple[str, ...]]:
    """The commands of a line of shell, without variables, redirections and what runs them."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    for word in (*lexer, ";"):
        if not set(word) <= _ENDS:
            words.append(word)
            continue
        if words and (found := list(_without_what_runs_it(words))):
            yield (Path(found[0]).name, *found[1:])
        words = []


def _without_what_runs_it(words: list[str]) -> Iterator[str]:
    if words[0] == "ssh" and "kubectl" in words:
        words = words[words.index("kubectl") :]
    yield from dropwhile(lambda word: word == "sudo" or re.match(r"[A-Z_]+=", word), words)
