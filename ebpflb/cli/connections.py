# SPDX-License-Identifier: Apache-2.0
"""ebpflb connections: what is open now, whose it is, and whether its backend still serves."""

from collections.abc import Iterator, Sequence
from typing import Any

import click

from ebpflb.cli.agent_client import NamesOfPods, query_socket_option
from ebpflb.cli.options import check_served
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.tables.connections import (
    by_option,
    connection_options,
    show_connections,
    wanted_by,
)
from ebpflb.errors import ProbeError
from ebpflb.model.connection import OpenConnection, with_names


@click.command(
    epilog="""\b
Like `conntrack -L`, `ipvsadm -Lnc` and `ss -tn`: one line per connection, of TCP, SCTP and UDP, of
pods and processes of this node (PATH socket) and of those that tc serves (PATH tc).

\b
  STATE    opening, established, closing; of UDP: exchange, stream, or bound, a socket
  CLIENT   its pod, or its address; ? for a socket that was closed meanwhile
  BACKEND  (gone): no endpoint any more that serves
  AGE      since the connection was opened; IDLE: since the last data
  BYTES    to and from the backend

\b
It reads the pinned maps and lists the sockets of all network namespaces. The agent, if it runs,
gives the names of pods, and the workloads of this node's.

\b
Examples:
  ebpflb connections
  ebpflb connections --service shop/web --backend-gone --by client
  ebpflb connections --older 1h --sort idle
  ebpflb connections -o jsonl | jq 'select(.state == "opening")'
"""
)
@by_option("client", "workload", "service", "backend")
@connection_options
@bpffs_option
@query_socket_option
def connections(bpffs_root: str | None, query_socket: str | None, **given: Any) -> None:
    """List the connections that are open through Services on this node."""
    from ebpflb.dataplane.view.connections import open_connections, open_sockets
    from ebpflb.dataplane.view.snapshot import read_snapshot

    wanted = wanted_by(given)
    maps = open_pins(pin_root(bpffs_root))[1]
    snapshot = read_snapshot(maps)
    served = {f"{namespace}/{name}" for namespace, name, _ in snapshot.ports}
    check_served(wanted.service, served & {wanted.service}, served)
    try:
        sockets = open_sockets()
    except OSError as error:
        raise ProbeError(f"cannot list the sockets of this machine: {error.strerror}") from error
    named = _named(list(open_connections(maps, snapshot, sockets)), NamesOfPods(query_socket))
    show_connections(filter(wanted.have, named), given)


def _named(found: Sequence[OpenConnection], names: NamesOfPods) -> Iterator[OpenConnection]:
    ends = [end for each in found for end in (each.client, each.backend) if end]
    pods = names.of({each.address for each in ends})
    return (with_names(each, pods, names.workload) for each in found)
