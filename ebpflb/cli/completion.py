# SPDX-License-Identifier: Apache-2.0
"""ebpflb completion: the script that lets a shell complete commands and options."""

import click
from click.shell_completion import get_completion_class

from ebpflb.cli import main

_SHELLS = ("bash", "zsh", "fish")


@click.command(
    epilog="""\b
Examples:
  source <(ebpflb completion bash)                                    # this shell
  ebpflb completion bash > /etc/bash_completion.d/ebpflb              # every shell
  ebpflb completion fish > ~/.config/fish/completions/ebpflb.fish
"""
)
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(shell: str) -> None:
    """Print the completion script of a shell."""
    script = get_completion_class(shell)
    if script:
        click.echo(script(main, {}, "ebpflb", "_EBPFLB_COMPLETE").source())
