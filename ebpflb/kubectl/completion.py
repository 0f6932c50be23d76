# SPDX-License-Identifier: Apache-2.0
"""kubectl_complete-ebpflb: what kubectl asks when somebody presses Tab behind `kubectl ebpflb`.

As kubectl's pkg/cmd/plugin_completion.go wants it: its arguments are the words so far, of which the
last one is to be completed; it prints a candidate on each line, with a tab before its description,
and then a directive of cobra.
"""

import sys

import click
from click.shell_completion import ShellComplete

from ebpflb.kubectl import NAME, program

# cobra's ShellCompDirective: Default, which completes names of files, and NoFileComp.
_FILES, _NO_FILES = 0, 4


def complete() -> None:
    """Print the candidates for the words on the command line."""
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(program, {}, NAME, "").get_completions(words, incomplete)
    for each in found:
        if each.type == "plain":
            click.echo(f"{each.value}\t{each.help}" if each.help else each.value)
    click.echo(f":{_FILES if any(each.type != 'plain' for each in found) else _NO_FILES}")
