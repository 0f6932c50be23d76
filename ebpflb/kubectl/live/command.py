# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb live: the command."""

from typing import Any

import click

from ebpflb.cli.options import listed, namespace_options
from ebpflb.cli.render import is_screen
from ebpflb.cli.tables.top import interval_option
from ebpflb.errors import ConfigError
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.live.sight import Sight
from ebpflb.kubectl.top import check_interval


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
@interval_option
@namespace_options
@cluster_command
def live(cluster: Cluster, interval: float, **given: Any) -> None:
    """Look into Services on a terminal, down to their flows."""
    namespace = listed(given, cluster.namespace)
    check_interval(cluster, interval)
    if not is_screen():
        raise ConfigError("live needs a terminal: `kubectl ebpflb top --watch` does not")
    try:
        from ebpflb.kubectl.live.app import LiveApp
    except ImportError as error:
        raise ConfigError(f"live needs Textual: pip install 'ebpflb[live]' ({error})") from error
    if not cluster.relay:
        cluster.find()
    LiveApp(Sight(cluster, namespace, interval)).run()
