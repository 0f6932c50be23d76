# SPDX-License-Identifier: Apache-2.0
"""ebpflb explain: what would happen to a new connection on this node, and why."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.agent_client import query_socket_option
from ebpflb.cli.explain_text import ExplainCommand, exit_status, outcome_of, show
from ebpflb.cli.explain_words import AddressOrName, Destination, parse_source, parse_target
from ebpflb.cli.options import Output, name_namespace_option, output_option
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import emit
from ebpflb.config.settings import setting
from ebpflb.errors import ConfigError

if TYPE_CHECKING:
    from ebpflb.dataplane.explain.question import ExplainQuestion


@click.command(
    cls=ExplainCommand,
    epilog="""\b
SRC  host            a process on this node
     10.1.0.5        a pod, or a client elsewhere, by address
     default/web-0   a pod, by name
     With a port (10.1.0.5:40000, [fd00::5]:40000), an existing flow from it decides.
DST  10.96.0.10:80, [fd00::10]:80, default/web, default/web:http,
     web.default.svc:80; TCP unless /udp or /sctp follows
Names without a namespace are looked up in that of -n, or in `default`.

\b
Exit status:
  0  works: DNAT to a backend
  1  fails: refused, dropped, or sent to a frontend but not translated; or likely fails, because
     each possible backend is unreachable or failed its last connection
  2  usage error
  3  unknown: an error, or the kernel and the agent's model differ
  4  not a Service address: passes unchanged
  5  works for some of the possible backends: others are unreachable or failed their last connection

\b
Examples:
  ebpflb explain host default/kubernetes
  ebpflb explain 10.1.0.5 10.96.0.10:53/udp
  ebpflb explain 198.51.100.7 192.0.2.1:30080 -o json | jq .outcome
""",
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@name_namespace_option
@bpffs_option
@query_socket_option
@output_option
def explain(
    source: str,
    target: str,
    namespace: str | None,
    bpffs_root: str | None,
    query_socket: str | None,
    output: Output,
) -> None:
    """Explain what happens to a connection from SRC to DST.

    It follows the steps of the BPF programs on the live maps of this node, and compares the
    frontend with the agent's model. Without an agent, it explains the maps alone. It sends no
    packets: it judges whether a backend answers by the last connection to it through this node, if
    that ended in the last 5 minutes, and by this client's connections at tc that still wait for an
    answer.
    """
    try:
        client, destination = parse_source(source, namespace), parse_target(target, namespace)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    found = _found(client, destination, pin_root(bpffs_root), query_socket)
    if output in ("table", "wide"):
        show(found, is_wide=output == "wide")
    else:
        emit(found, output, lambda: ())
    raise click.exceptions.Exit(exit_status(found))


def _found(
    source: AddressOrName, target: Destination, root: Path, query_socket: str | None
) -> dict[str, Any]:
    import msgspec

    from ebpflb.cli.explain_names import AskedAgent

    agent = AskedAgent(setting("query-socket", query_socket, os.environ))
    pods = agent.pods() if source.name else {}
    maps = open_pins(root)[1] if agent.failed else None
    question = _question(source, target, pods, root)
    found = agent.explain(question)
    if found is None:
        from ebpflb.dataplane.explain.answer import explain as explain_maps

        maps = maps or open_pins(root)[1]
        found = explain_maps(maps, root, question, None, agent.failed)
    told: dict[str, Any] = msgspec.to_builtins(found)
    return {"note": told.pop("note"), "outcome": str(outcome_of(told)), **told}


def _question(
    source: AddressOrName, target: Destination, pods: Mapping[str, list[str]], root: Path
) -> "ExplainQuestion":
    from ebpflb.cli.explain_names import addresses_of
    from ebpflb.dataplane.explain.question import ExplainQuestion
    from ebpflb.model.address import format_address

    addresses = [format_address(source.address)] if source.address else []
    if source.name:
        addresses = addresses_of(source.name, pods)
    end = target.end
    return ExplainQuestion(
        format_address(end.address) if end.address else str(end.name),
        ",".join(addresses),
        end.port,
        int(source.port or 0),
        bool(source.name),
        target.protocol.name if target.protocol else "",
        str(root),
    )
