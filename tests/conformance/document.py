# SPDX-License-Identifier: Apache-2.0
"""The rules as a document: one table for each group."""

from collections.abc import Iterable, Iterator
from itertools import groupby

from tests.conformance.rules import Group, Rule

_HEAD = """\
# Conformance

kube-proxy's rules as of Kubernetes 1.36, from its source and tests, and the tests of this project
that prove each rule. The test run (`make conformance`) writes this page, and fails if the page and
the tests no longer agree; to change a rule, edit `tests/conformance/rules/`.
[services.md](../services.md) is a shorter introduction.

Letters name the clients: P is a pod of this node; H a process of this node in the host's network; R
a pod of another node that still has its own address; E any other client outside, including other
nodes. C are the endpoints of the cluster, L those of this node.
"""


def render(groups: Iterable[Group]) -> str:
    """The whole document."""
    groups = tuple(groups)
    parts = [_HEAD, _summary(groups), *(_table(group) for group in groups)]
    return "\n".join(parts)


def _summary(groups: Iterable[Group]) -> str:
    rules = [rule for group in groups for rule in group.rules]
    missing = [rule for rule in rules if rule.missing]
    differing = [rule for rule in rules if rule.differs and not rule.missing]
    alike = len(rules) - len(missing) - len(differing)
    lines = [
        "| rules | number | which |",
        "|---|---|---|",
        f"| all | {len(rules)} | |",
        f"| hold as in kube-proxy | {alike} | |",
        f"| hold with a difference | {len(differing)} | {_ids(differing)} |",
        f"| do not hold | {len(missing)} | {_ids(missing)} |",
    ]
    return "".join(f"{line}\n" for line in lines)


def _ids(rules: Iterable[Rule]) -> str:
    return ", ".join(rule.id for rule in rules) or "none"


def _table(group: Group) -> str:
    lines = [f"## {group.title}", "", "| | rule | proof | remark |", "|---|---|---|---|"]
    return "".join(f"{line}\n" for line in [*lines, *(_row(rule) for rule in group.rules)])


def _row(rule: Rule) -> str:
    remark = f"**Missing**: {rule.missing}" if rule.missing else rule.differs
    if rule.differs and not rule.missing:
        remark = f"**Differs**: {remark}"
    cells = (rule.id, rule.text, "<br>".join(_proofs(rule.tests)), remark)
    return "|" + "|".join(_cell(each) for each in cells) + "|"


def _cell(text: str) -> str:
    return f" {text} ".replace("|", "\\|") if text else " "


def _proofs(tests: Iterable[str]) -> Iterator[str]:
    for path, found in groupby(tests, lambda test: test.partition("::")[0]):
        sentences = "; ".join(_sentence(test) for test in found)
        yield f"[{path.removeprefix('tests/')}](../../{path}): {sentences}"


def _sentence(test: str) -> str:
    return test.partition("::")[2].removeprefix("test_").replace("_", " ")
