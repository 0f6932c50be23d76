# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb connections: what is open now on all nodes."""

from collections.abc import Iterator, Mapping
from typing import Any

import click
from msgspec.json import Decoder

from ebpflb.cli.tables.connections import by_option, connection_options, show_connections, wanted_by
from ebpflb.from_json import JsonError
from ebpflb.kubectl.asking import AgentQuestion, AskedAgents, last_line
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.relay import RelayQuestion
from ebpflb.model.connection import BY, OpenConnection, WantedConnections, read_connection
from ebpflb.words.observe import CONNECTIONS

_items_decoder = Decoder(list[OpenConnection])


@click.command(
    epilog="""\b
`ebpflb connections --help` describes the columns. A connection is listed by the node that
translates it: that of its client, or the one by which it came in.

\b
Examples:
  kubectl ebpflb connections -n shop --service web
  kubectl ebpflb connections -A --backend-gone --by client
  kubectl ebpflb connections -A --older 1h --sort idle
"""
)
@by_option(*BY)
@connection_options
@cluster_command
def connections(cluster: Cluster, **given: Any) -> None:
    """List the connections that are open through Services."""
    wanted = wanted_by(given, cluster.namespace)
    parameters = {
        name: "true" if value is True else str(value or "")
        for name, value in _options(wanted).items()
        if name != "namespace"
    }
    found = cluster.asked(
        RelayQuestion(CONNECTIONS, wanted.namespace, parameters),
        _items_decoder.decode,
        lambda: opened(cluster, wanted),
    )
    show_connections(found, given, nodes=True)


def opened(cluster: AskedAgents, wanted: WantedConnections) -> Iterator[OpenConnection]:
    for answer in cluster.ask(AgentQuestion("connections", _options(wanted))):
        if answer.status:
            complaint = last_line(answer.stderr) or f"exit status {answer.status}"
            cluster.note(answer.agent.node, complaint)
        for line in answer.stdout.splitlines():
            try:
                found = read_connection(line)
            except JsonError as error:
                cluster.note(answer.agent.node, f"a line that cannot be read: {error}")
            else:
                found.node = answer.agent.node
                yield found


def _options(wanted: WantedConnections) -> Mapping[str, str | bool]:
    return {
        "namespace": wanted.namespace,
        "service": wanted.service,
        "from": wanted.source,
        "older": f"{wanted.older}s" if wanted.older else "",
        "backend-gone": wanted.is_removed,
    }
