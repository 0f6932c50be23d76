# SPDX-License-Identifier: Apache-2.0
"""Options and values that the documents name exist."""

import re
from collections.abc import Iterator
from difflib import get_close_matches
from functools import cache
from pathlib import Path

import click
import pytest

from ebpflb.cli import main as on_a_node
from ebpflb.config.kube_proxy_config import FIELDS
from ebpflb.config.kube_proxy_flags import DEPRECATED_PORTS, IGNORED
from ebpflb.config.option import variable
from ebpflb.config.options import OPTIONS
from ebpflb.kubectl import program as of_the_cluster
from tests.unit.docs.documents import documents, is_current, name, spans
from tests.unit.docs.parsing import NotUnderstoodError
from tests.unit.docs.schema import check_value, schema

# Options of other programs that are named alone.
FOREIGN = {"ctstate", "no-hooks", "node-ip", "reset-then-reuse-values", "reuse-values", "values"}
FOREIGN |= {"register-with-taints", "startup-taint", "set"}
FOREIGN_SETTINGS = {"disable-kube-proxy"}
SETTINGS = {each for option in OPTIONS for each in option.names}
# Alike, and something else.
WORDS = {"kube-proxy-config", "EBPFLB_PEERS"}
# A map of kube-proxy's.
WORDS |= {"service-nodeports"}
# Values of Cilium's chart.
WORDS |= {"bpf.disableExternalIPMitigation", "bpf.lbExternalClusterIP"}


def flags(command: click.Command) -> Iterator[str]:
    """Of a command and all below it."""
    for parameter in command.params:
        for each in (*parameter.opts, *parameter.secondary_opts):
            yield each.lstrip("-")
    if isinstance(command, click.Group):
        for below in command.commands.values():
            yield from flags(below)


@cache
def all_flags() -> frozenset[str]:
    return frozenset({*flags(on_a_node), *flags(of_the_cluster), "help", *FOREIGN})


def unknown(span: str) -> bool:
    """Whether a piece of code is an option, a setting or a value of the chart that is not there."""
    if span in WORDS:
        return False
    if found := re.match(r"--([a-z][a-z0-9-]+)(?=[ =]|$)", span):
        return found[1] not in all_flags()
    if found := re.fullmatch(r"([a-z]+(?:-[a-z]+)*): \S+", span):
        return found[1] not in SETTINGS | FOREIGN_SETTINGS
    if found := re.fullmatch(r"EBPFLB_\w+", span):
        return span not in {variable(each) for each in SETTINGS | {"config"}}
    if re.fullmatch(r"[a-z]+(-[a-z]+)+", span):
        return is_nearly_a_setting(span)
    return is_no_value(span)


def is_nearly_a_setting(word: str) -> bool:
    known = SETTINGS | all_flags() | IGNORED.keys() | set(DEPRECATED_PORTS)
    return word not in known and bool(get_close_matches(word, known, cutoff=0.8))


def is_no_value(span: str) -> bool:
    """As metrics.port or k8sServicePort=6443."""
    key, _, value = span.partition("=")
    is_file = key.endswith((".h", ".conf"))
    if key in FIELDS or is_file or not re.fullmatch(r"[a-z]\w*(\.[\w-]+)+", key):
        return False
    if key.split(".")[0] not in schema()["properties"]:
        return False
    try:
        check_value(f"{key}={value}")
    except NotUnderstoodError:
        return True
    return False


@pytest.mark.parametrize("path", [*filter(is_current, documents())], ids=name)
def test_options_exist(path: Path) -> None:
    assert not [span for span in spans(path) if unknown(span)]


@pytest.mark.parametrize(
    "span",
    [
        "--conntrack-maximum",
        "--takeover-wait 60",
        "xpd: auto",
        "flow-rates",
        "conntrack-tcp-timeout-establish",
        "EBPFLB_NODENAME",
        "metrics.prometheusRule.runbookURL",
        "kubeProxy.takeOver=true",
    ],
)
def test_an_option_that_does_not_exist_is_found(span: str) -> None:
    assert unknown(span)
