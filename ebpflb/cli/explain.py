# SPDX-License-Identifier: Apache-2.0
"""ebpflb explain: what would happen to a new connection on this node, and why."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.agent_client import query_socket_option
from ebpflb.cli.explain_text import ExplainCommand, exit_status, outcome_of, show
from ebpflb.cli.explain_words import AddressOrName, Destination, parse_source, parse_target
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import Output, emit, name_namespace_option, output_option
from ebpflb.config.settings import setting
from ebpflb.errors import AttachError, ConfigError, QueryError
from ebpflb.words.connections import END, Fate

if TYPE_CHECKING:
    from ebpflb.cli.explain_names import AgentModel
    from ebpflb.dataplane.explain.lookups import Lookups
    from ebpflb.dataplane.explain.steps import Client
    from ebpflb.model.address import Address

# Older failures may have been fixed.
_LATELY = "5m"
_TABLE_IS_FULL = (
    "lb_conntrack is full: a new connection works, but is forgotten after 4 minutes without packets"
)


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
    from ebpflb.cli.explain_answer import answer
    from ebpflb.cli.explain_names import AgentModel, NameLookup
    from ebpflb.dataplane.explain.lookups import Lookups
    from ebpflb.dataplane.kernel.rtnetlink import route_to
    from ebpflb.model.address import family_of

    lookups = Lookups(open_pins(root)[1])
    agent = AgentModel(setting("query-socket", query_socket, os.environ))
    names = NameLookup(lookups.maps, agent)
    addresses = names.addresses(source)
    key = names.frontend(target, dict.fromkeys(map(family_of, addresses)))
    client = _client(lookups, source, addresses, key.address)
    found = answer(lookups, agent, client, key, route_to)
    note = _second_set(root, client) or _note(source, client, lookups, found)
    _add_trouble(found, _last_flows(agent, found["target"]))
    return {"note": note, "outcome": str(outcome_of(found)), **found}


def _second_set(root: Path, client: "Client") -> str:
    """Which other programs of ebpflb a connection of this client passes, and who decides."""
    from ebpflb.dataplane.attach.strays import find_strays, served_cgroups, summary
    from ebpflb.dataplane.explain.steps import ClientKind
    from ebpflb.dataplane.kernel.rtnetlink import device_name

    device = device_name(client.ifindex) if client.ifindex else ""
    passed = {device} if client.kind is ClientKind.OUTSIDE else {device, ""}
    try:
        strays = find_strays(root, served_cgroups(root))
    except AttachError:
        return ""
    met = [each for each in strays if each.device in passed]
    return f"{summary(met)}: see `ebpflb doctor`" if met else ""


def _note(
    source: AddressOrName, client: "Client", lookups: "Lookups", found: dict[str, Any]
) -> str:
    from ebpflb.dataplane.explain.steps import ClientKind
    from ebpflb.dataplane.flows.conntrack import is_full

    if source.name and client.kind is ClientKind.OUTSIDE:
        return "a pod on another node, which decides first: run explain there too"
    is_tracked = found["target"]["protocol"] != "UDP" and found["kernel"]["place"].startswith("tc ")
    if found["verdict"] == Fate.TRANSLATED and is_tracked and is_full(lookups.maps):
        return _TABLE_IS_FULL
    return ""


def _last_flows(agent: "AgentModel", target: dict[str, Any]) -> list[dict[str, Any]]:
    """The last flows to the target's Service that have ended; none without an agent."""
    if not target["service"]:
        return []
    try:
        flows = agent.flows(service=target["service"], event=END, since=_LATELY)
    except QueryError:
        return []
    return [each for each in flows if each["protocol"] == target["protocol"]]


def _add_trouble(found: dict[str, Any], flows: list[dict[str, Any]]) -> None:
    """Add to each backend why connections to it fail."""
    from ebpflb.dataplane.explain.reach import Silent, last_failures, trouble, unanswered
    from ebpflb.dataplane.kernel.rtnetlink import route_to
    from ebpflb.model.address import parse_address

    waiting = found["kernel"]["flows"] if found["target"]["protocol"] != "UDP" else []
    failures = {**unanswered(waiting), **last_failures(flows)}
    silent = Silent.now()
    for each in found["kernel"]["backends"]:
        known = trouble(parse_address(each["address"]), route_to, silent)
        known = known and f"is out of reach: {known}"
        each["trouble"] = known or failures.get((each["address"], each["port"]), "")


def _client(
    lookups: "Lookups", source: AddressOrName, addresses: "list[Address]", target: "Address"
) -> "Client":
    from ebpflb.dataplane.explain.hooks import client_at, host_client
    from ebpflb.dataplane.kernel.rtnetlink import route_to
    from ebpflb.model.address import family_of

    family, port = family_of(target), int(source.port or 0)
    if not addresses:
        return host_client(lookups, family, port)
    for address in addresses:
        if family_of(address) is family:
            return client_at(lookups, address, family, port, route_to)
    raise ConfigError(f"SRC has no {family.text} address, but DST is one")
