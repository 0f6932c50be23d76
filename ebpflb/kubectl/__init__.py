# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb: the agents of all nodes in one command, through the API server.

It needs only Python and a kubeconfig. It asks the relay, or runs `ebpflb` in the agents' pods.
"""

import click

from ebpflb import __version__
from ebpflb.cli import CONTEXT, CommandGroup, Commands, verbose_option

NAME = "kubectl ebpflb"


@click.group(
    cls=CommandGroup,
    commands=Commands(
        {
            "flows": "ebpflb.kubectl.flows:flows",
            "connections": "ebpflb.kubectl.connections:connections",
            "explain": "ebpflb.kubectl.explain:explain",
            "top": "ebpflb.kubectl.top:top",
            "services": "ebpflb.kubectl.services:services",
            "status": "ebpflb.kubectl.status:status",
            "doctor": "ebpflb.kubectl.doctor:doctor",
            "sysdump": "ebpflb.kubectl.sysdump:sysdump",
            "live": "ebpflb.kubectl.live.command:live",
            "ui": "ebpflb.kubectl.ui.command:ui",
        }
    ),
    context_settings=CONTEXT,
    epilog="""\b
Nodes whose agent does not answer are listed on standard error, and the exit status is 1.
You need permission to list pods, and to get and create pods/exec in the agents' namespace. If the
cluster has a relay, then services, top, flows, connections, explain, live and ui only need
permission to list what they show, in the API group observe.ebpflb.io, and to watch flows.

\b
Examples:
  kubectl ebpflb status
  kubectl ebpflb flows -A --follow --verdict refused,dropped
  kubectl ebpflb explain shop/cart-0 shop/web
  kubectl ebpflb COMMAND --help
""",
)
@click.version_option(__version__, prog_name=NAME)
@verbose_option("Show where an unexpected error comes from.")
def program() -> None:
    """Show what ebpflb does on all nodes: traffic, state and problems."""


def main() -> None:
    """Run the plugin as kubectl starts it."""
    program(prog_name=NAME)
