# SPDX-License-Identifier: Apache-2.0
"""kubectl_complete-ebpflb: what kubectl asks when somebody presses Tab behind `kubectl ebpflb`.

As kubectl's pkg/cmd/plugin_completion.go wants it: its arguments are the words so far, of which the
last one is to be completed; it prints a candidate on each line, with a tab before its description,
and then a directive of cobra.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import click
from click.shell_completion import ShellComplete

from ebpflb.cli.options import KnownNames
from ebpflb.errors import EbpflbError
from ebpflb.kubectl import NAME, program
from ebpflb.kubectl.access import METADATA, Access

# cobra's ShellCompDirective: Default, which completes names of files, and NoFileComp.
_FILES, _NO_FILES = 0, 4
# Nobody waits longer for a Tab.
_SECONDS = 2.0


def complete() -> None:
    """Print the candidates for the words on the command line."""
    *words, incomplete = sys.argv[1:] or [""]
    names = {"obj": KnownNames(_services, _nodes)}
    found = ShellComplete(program, names, NAME, "").get_completions(words, incomplete)
    for each in found:
        if each.type == "plain":
            click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(f":{_FILES if any(each.type != 'plain' for each in found) else _NO_FILES}")


def _services(given: Mapping[str, Any]) -> Iterator[str]:
    """By name in the chosen namespace; of all with -A."""
    with suppress(EbpflbError):
        access = _access(given)
        if given.get("all_namespaces"):
            yield from map("/".join, _names(access, "/api/v1/services"))
        else:
            namespace = quote(given.get("namespace") or access.namespace)
            found = _names(access, f"/api/v1/namespaces/{namespace}/services")
            yield from (name for _, name in found)


def _nodes(given: Mapping[str, Any]) -> Iterator[str]:
    with suppress(EbpflbError):
        yield from (name for _, name in _names(_access(given), "/api/v1/nodes"))


def _names(access: Access, path: str) -> Iterator[tuple[str, str]]:
    """The namespace, empty for none, and the name of each object."""
    with access.reading():
        for each in access.items(path, accept=METADATA):
            yield each["metadata"].get("namespace", ""), each["metadata"]["name"]


def _access(given: Mapping[str, Any]) -> Access:
    return Access(given.get("kubeconfig") or "", given.get("context") or "", _SECONDS)
