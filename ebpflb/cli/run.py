# SPDX-License-Identifier: Apache-2.0
"""ebpflb run: the agent in the foreground."""

import os
from collections.abc import Callable
from typing import Any

import click

from ebpflb.cli import VERBOSITY, add_verbosity
from ebpflb.config import OPTIONS, load_settings

# On the command line this one is -v.
_VERBOSITY = "verbosity"


def _setting_options(command: Callable[..., None]) -> Callable[..., None]:
    """One option per setting; what is not given is not passed on."""
    for option in reversed(OPTIONS):
        if option.name != _VERBOSITY:
            add = click.option(
                f"--{option.name}",
                metavar=option.metavar,
                help=f"{option.help[0].upper()}{option.help[1:]}",
                multiple=option.is_list,
            )
            command = add(command)
    return command


@click.command(
    epilog="""\b
Each option may also come from the environment (--node-name: EBPFLB_NODE_NAME) or from a YAML
file (node-name: ...). The command line goes before the environment, the environment before the
file.

\b
Examples:
  ebpflb run --manifests /etc/ebpflb/manifests
  ebpflb run --manifests services.yaml --host-devices eth0,eth1 --socket-lb host -v
  EBPFLB_MANIFESTS=/etc/ebpflb ebpflb run --log-format json
  ebpflb run --config /etc/ebpflb/settings.yaml
"""
)
@click.option("--config", metavar="FILE", help="YAML file with any of the options below.")
@_setting_options
@click.option(
    "-v", "--verbose", count=True, expose_value=False, callback=add_verbosity, help="Log each sync."
)
@click.pass_context
def run(ctx: click.Context, /, **given: Any) -> None:
    """Serve this node's Services until SIGTERM or SIGINT.

    Stopping it cuts nothing: what is loaded goes on, and the next run takes over. `ebpflb cleanup`
    removes it.
    """
    flags = {
        name.replace("_", "-"): value for name, value in given.items() if value not in (None, ())
    }
    if ctx.meta.get(VERBOSITY):
        flags[_VERBOSITY] = ctx.meta[VERBOSITY]
    settings = load_settings(flags, os.environ)
    from ebpflb.agent.process import run as run_agent

    run_agent(settings)
