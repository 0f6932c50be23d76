# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb live: the command."""

from typing import Any

import click

from ebpflb.cli.options import listed, namespace_options
from ebpflb.cli.render import is_screen
from ebpflb.errors import ConfigError
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.live.sight import Sight


@click.command(
    epilog="""\b
Enter opens a Service: its backends, and its last flows. Enter on a flow explains it. Escape goes
back; the last line names the other keys.

\b
Examples:
  kubectl ebpflb live
  kubectl ebpflb live -A --interval 5
"""
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.1),
    default=2.0,
    show_default=True,
    metavar="SECONDS",
    help="Length of a sample.",
)
@namespace_options
@cluster_command
def live(cluster: Cluster, interval: float, **given: Any) -> None:
    """Look into Services on a terminal, down to their flows."""
    namespace = listed(given, cluster.namespace)
    if interval >= cluster.access.seconds:
        raise click.UsageError("--timeout must be longer than --interval")
    if not is_screen():
        raise ConfigError("live needs a terminal: `kubectl ebpflb top --watch` does not")
    try:
        from ebpflb.kubectl.live.app import LiveApp
    except ImportError as error:
        raise ConfigError(f"live needs Textual: pip install 'ebpflb[live]' ({error})") from error
    LiveApp(Sight(cluster, namespace, interval)).run()
