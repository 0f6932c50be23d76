# SPDX-License-Identifier: Apache-2.0
"""Commands of the documents exist, with their options, values of the chart and targets."""

import re
import shlex
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

import click
import pytest

from ebpflb.cli import main as on_a_node
from ebpflb.kubectl import program as of_the_cluster
from tests.bench.__main__ import main as bench
from tests.cluster.__main__ import main as cluster
from tests.cni.row import rows
from tests.fuzz.__main__ import main as fuzz
from tests.kernels.__main__ import main as kernels
from tests.unit.docs.documents import ROOT, Command, commands
from tests.unit.docs.parsing import NotUnderstoodError, understand
from tests.unit.docs.schema import check_value

# What the arguments of a target are for.
TARGETS_COMMANDS = {"bench": bench, "fuzz": fuzz, "test-kernels": kernels}


@cache
def targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def check(words: Sequence[str]) -> None:
    """Raise what is wrong with a command."""
    match words:
        case ["ebpflb", *rest] if rest[:1] != ["/"]:  # that is the title of a dashboard
            check_on_a_node(rest)
        case ["kubectl", *rest]:
            check_kubectl(rest)
        case ["helm", *rest]:
            check_helm(rest)
        case ["make", *rest]:
            check_make(rest)
        case ["python", "-m", "tests.cluster", *rest]:
            understand(cluster, rest)


def check_on_a_node(words: Sequence[str]) -> None:
    understand(on_a_node, words)
    match words:
        case ["lab", "exec", _, *inner]:
            check(inner)


def check_kubectl(words: Sequence[str]) -> None:
    """The plugin, and what is executed in a pod."""
    if words[:1] == ["ebpflb"]:
        understand(of_the_cluster, words[1:])
    elif "exec" in words and "--" in words:
        check(words[words.index("--") + 1 :])


def check_helm(words: Sequence[str]) -> None:
    given = list(settings(words))
    for setting in given:
        check_value(setting)
    names = {setting.partition("=")[0] for setting in given}
    if words[0] == "install" and "image.repository" not in names:
        raise NotUnderstoodError("the chart of a checkout needs image.repository")


def settings(words: Sequence[str]) -> Iterator[str]:
    """The values that helm is given, such as k8sServicePort=6443."""
    for option, value in pairwise(words):
        if option in {"--set", "--set-string"}:
            yield from re.split(r",(?![^{]*\})", value)


def check_make(words: Sequence[str]) -> None:
    variables = dict(word.split("=", 1) for word in words if "=" in word)
    for target in (word for word in words if "=" not in word):
        if target not in targets():
            raise NotUnderstoodError(f"no target {target}")
        if target in TARGETS_COMMANDS:
            understand(TARGETS_COMMANDS[target], shlex.split(variables.get("ARGS", "")))
    cni = variables.get("CNI", "")
    if cni.islower() and cni not in rows():
        raise NotUnderstoodError(f"no CNI {cni}")


def fault(command: Command) -> str | None:
    try:
        check(command.words)
    except (NotUnderstoodError, click.UsageError) as error:
        return f"{command}: {error}"
    return None


@pytest.mark.parametrize("document", sorted({each.document for each in commands()}))
def test_commands_are_understood(document: str) -> None:
    faults = map(fault, (each for each in commands() if each.document == document))
    assert not list(filter(None, faults))


@pytest.mark.parametrize(
    "line",
    [
        "ebpflb flow",
        "ebpflb status --outputs json",
        "ebpflb flows --last many",
        "ebpflb explain host",
        "ebpflb maps list too many",
        "ebpflb lab exec node1 ebpflb flaws",
        "kubectl -n kube-system exec POD -c ebpflb -- ebpflb stat",
        "kubectl ebpflb run",
        "helm install ebpflb charts/ebpflb --set image.repository=A/ebpflb --set metrics.prot=1",
        "helm install ebpflb charts/ebpflb --set metrics.port=1",
        "helm upgrade ebpflb charts/ebpflb --set config.socketLb=host",
        "helm upgrade ebpflb charts/ebpflb --set metrics.port=1,healths.port=2",
        "make everything",
        "make bench ARGS=nothing",
        "make fuzz ARGS='packets --speed 7'",
        "make test-cni CNI=canal",
        "python -m tests.cluster up --knots 3",
    ],
)
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    with pytest.raises((NotUnderstoodError, click.UsageError)):
        check(shlex.split(line))


def test_the_documents_have_commands_of_every_kind() -> None:
    programs = {command.words[:2] for command in commands()}
    assert {("ebpflb", "explain"), ("kubectl", "ebpflb"), ("helm", "install")} <= programs
    assert {("make", "bench"), ("ebpflb", "lab"), ("python", "-m")} <= programs
