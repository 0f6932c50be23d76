# SPDX-License-Identifier: Apache-2.0
"""The rules as they are written down in rules/, one file for each group."""

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

RULES = Path("tests/conformance/rules")

_FIELDS = {"id", "rule", "tests", "differs", "missing"}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. tests: node ids without parameters. differs, missing: a sentence each, or none."""

    id: str
    text: str
    tests: tuple[str, ...] = ()
    differs: str = ""
    missing: str = ""


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that make one table."""

    title: str
    rules: tuple[Rule, ...]


def read_groups(root: Path) -> tuple[Group, ...]:
    """All groups of the checkout at `root`, in the order of their files."""
    return tuple(_read_group(path) for path in sorted((root / RULES).glob("*.yaml")))


def named_tests(groups: Iterable[Group]) -> tuple[str, ...]:
    """What the rules name, each test once."""
    return tuple(sorted({each for group in groups for rule in group.rules for each in rule.tests}))


def exists(root: Path, test: str) -> bool:
    """Whether a node id names a test function of a file below `root`."""
    path, _, name = test.partition("::")
    return (root / path).is_file() and name in _functions((root / path).read_text())


def faults(root: Path, groups: Iterable[Group]) -> list[str]:
    """What is wrong with the rules themselves, a line each."""
    rules = [rule for group in groups for rule in group.rules]
    ids = [rule.id for rule in rules]
    twice = [f"{each}: there are two rules of this id" for each in set(ids) if ids.count(each) > 1]
    return sorted(twice) + [fault for rule in rules for fault in _faults_of(root, rule)]


def _faults_of(root: Path, rule: Rule) -> list[str]:
    found = [f"{rule.id}: there is no test {each}" for each in rule.tests if not exists(root, each)]
    if rule.missing and rule.tests:
        found.append(f"{rule.id}: is said to be missing, and has tests")
    if not rule.missing and not rule.tests:
        found.append(f"{rule.id}: no test proves it")
    return found


@cache
def _functions(text: str) -> frozenset[str]:
    return frozenset(
        each.name for each in ast.parse(text).body if isinstance(each, ast.FunctionDef)
    )


def _read_group(path: Path) -> Group:
    content = yaml.safe_load(path.read_text())
    return Group(content["title"], tuple(_rule(path, each) for each in content["rules"]))


def _rule(path: Path, written: Mapping[str, Any]) -> Rule:
    if unknown := written.keys() - _FIELDS:
        raise ValueError(f"{path}: rule {written.get('id')}: unknown: {', '.join(sorted(unknown))}")
    return Rule(
        str(written["id"]),
        written["rule"],
        tuple(written.get("tests", ())),
        written.get("differs", ""),
        written.get("missing", ""),
    )
