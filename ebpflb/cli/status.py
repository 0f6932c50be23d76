# SPDX-License-Identifier: Apache-2.0
"""ebpflb status: whether this node is served, by which programs, and whether an agent runs."""

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.agent_client import (
    AGENT_DOWN,
    BEHIND,
    NOT_SERVED,
    SERVED,
    ask_agent,
    metrics_address_option,
    node_in_words,
    silent_nodes,
)
from ebpflb.cli.options import Output, output_option, watch_option
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import show
from ebpflb.cli.table import Column, TextTable, positions, size
from ebpflb.config.settings import setting
from ebpflb.errors import PinError
from ebpflb.model.agent_report import AgentReport, DeviceReport, TunnelsReport
from ebpflb.observe.health import rfc3339

if TYPE_CHECKING:
    from ebpflb.dataplane.attach.attachments import Attachment
    from ebpflb.dataplane.view.dump import MapFill

_FLOW_TABLES = {
    "lb_conntrack": "established",
    "lb_ct_short": "opening, ended",
    "lb_ct_udp": "UDP",
    "lb_ct_stream": "UDP streams",
    "lb_ct_dsr": "in tunnels",
    "lb_conn_places": "TCP sockets",
    "lb_connections": "more TCP sockets",
    "lb_sockets": "UDP sockets",
}

_WAYS = {"redirect": "redirected past FORWARD", "stack": "routed by the kernel, through FORWARD"}
_NAMED_DEVICES = 2


@dataclass(frozen=True, slots=True)
class Loaded:
    generation: str
    source_hash: str
    last_sync: str
    hooks: "list[Attachment]"
    missing_hooks: list[str]
    maps: "list[MapFill]"
    flows: dict[str, int]
    dropped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Status:
    """`agent`: its /status page, None without an agent.

    state: served; agent down; behind, if changes do not reach the kernel; not served, if hooks or
    maps are missing. shown: the state, and of when what the programs serve is.
    """

    state: str
    shown: str
    healthy: bool
    problems: list[str]
    agent: AgentReport | None
    loaded: Loaded | None = None


@click.command(
    epilog="""\b
Without an agent, the programs serve what it wrote last: `agent down, serving the state of 05:48`
(UTC). `NOT served as it should be`: nothing is loaded, or a hook is missing. Exit status 1 in both
cases, and if changes do not reach the kernel. Manifests that cannot be read are listed; their last
readable version is still served.

\b
Examples:
  ebpflb status
  ebpflb status -o json | jq .loaded.dropped
  ebpflb status -w
  ebpflb status --metrics-bind-address 127.0.0.1:20249
"""
)
@watch_option
@bpffs_option
@metrics_address_option
@output_option
def status(
    watch: bool, bpffs_root: str | None, metrics_bind_address: str | None, output: Output
) -> None:
    """Show the agent, attached programs, map usage and drops."""
    address = setting("metrics-bind-address", metrics_bind_address, os.environ)
    look_here = partial(look, pin_root(bpffs_root), address)
    lines = partial(_lines, is_wide=output == "wide")
    found = show(look_here, lines, output, watch=watch)
    if not found.healthy:
        raise click.exceptions.Exit(1)


def look(root: Path, metrics_address: str) -> Status:
    """A missing agent and missing pins are part of the status, not errors."""
    agent = ask_agent(metrics_address)
    state, problems = SERVED, []
    if agent is None:
        state = AGENT_DOWN
        problems.append(f"no agent answers at {metrics_address or '(no address)'}")
    elif not agent.healthy:
        state = BEHIND
        problems.append("changes do not reach the kernel; see the agent's log")
    loaded = None
    try:
        loaded = _loaded(root)
        missing = [*_second_set(root), *_missing(loaded, agent)]
    except PinError as error:
        missing = [str(error)]
    state = NOT_SERVED if missing else state
    shown = node_in_words(state, loaded.last_sync if loaded else "", rfc3339(time.time()))
    return Status(state, shown, state == SERVED, [*problems, *missing], agent, loaded)


def _missing(loaded: Loaded, agent: AgentReport | None) -> Iterator[str]:
    """The hooks without our programs."""
    if loaded.missing_hooks:
        yield f"socket hooks not attached: {', '.join(loaded.missing_hooks)}"
    for each in loaded.hooks:
        if each.place and not each.current:
            yield f"outdated program at {each.hook} {each.place}"
    if agent:
        yield from (f"{at}: {text}" for at, text in agent.attach_errors.items())


def _second_set(root: Path) -> list[str]:
    from ebpflb.dataplane.attach.strays import find_strays, served_cgroups, summary

    strays = find_strays(root, served_cgroups(root))
    return [f"{summary(strays)}: see `ebpflb doctor`"] if strays else []


def _loaded(root: Path) -> Loaded:
    from ebpflb.dataplane.attach.attachments import attachments, missing_hooks
    from ebpflb.dataplane.layout.enums import word
    from ebpflb.dataplane.load.loader import read_meta
    from ebpflb.dataplane.load.pins import LINKS
    from ebpflb.dataplane.view.counts import read_drops, sum_drops
    from ebpflb.dataplane.view.dump import map_fills

    generation, maps = open_pins(root)
    hooks = attachments(root / LINKS, generation)
    fills = map_fills(maps)
    meta = read_meta(generation)
    return Loaded(
        generation=str(generation.directory),
        source_hash=bytes(meta.source).hex() if meta else "",
        last_sync=rfc3339(last) if (last := generation.last_sync) else "",
        hooks=hooks,
        missing_hooks=missing_hooks(hooks),
        maps=fills,
        flows={each.name: each.used for each in fills if each.name in _FLOW_TABLES},
        dropped={word(reason): count for reason, count in sum_drops(read_drops(maps)).items()},
    )


def _lines(found: Status, *, is_wide: bool) -> Iterator[str | TextTable[Any]]:
    shown = "NOT served as it should be" if found.state == NOT_SERVED else found.shown
    yield f"Node: {shown}" if found.state == AGENT_DOWN else f"Node is {shown}"
    for problem in found.problems:
        yield f"  {problem}"
    if found.agent:
        yield from _agent_lines(found.agent)
    if found.loaded:
        yield from _loaded_lines(found.loaded, is_wide=is_wide)


def _agent_lines(agent: AgentReport) -> Iterator[str | TextTable[Any]]:
    state = "in sync" if agent.in_sync else "not in sync"
    if seconds := agent.unread_seconds:
        state += f" with what it could read {seconds} s ago"
    yield ""
    yield f"Agent {agent.version}, node {agent.node}, pid {agent.pid}: {state}"
    if stale := agent.stale_since:
        yield f"  serving the state of {stale}: the API server has not answered since the start"
    yield f"  started {agent.started}, last sync {agent.last_sync or 'never'}"
    yield f"  {agent.services} Services with {agent.frontends} frontends"
    for option, selector in agent.selectors.items():
        yield f"  only Services selected by --{option} {selector!r}"
    if agent.services_left_out:
        yield f"  {agent.services_left_out} other Services are left to kube-proxy"
    if ejected := agent.ejected_endpoints:
        yield f"  ejected endpoints (connections to them fail): {ejected}"
    for feature, text in agent.kernel_lacks.items():
        yield f"  the kernel lacks {feature}: {text}"
    for what, text in agent.rights_kept.items():
        yield f"  could not give up {what}: {text}"
    yield from _trouble_lines(agent)
    yield from _network_lines(agent)


def _trouble_lines(agent: AgentReport) -> Iterator[str]:
    for text in agent.source_errors.values():
        yield f"  cannot read: {text}"
    for service, text in agent.refused.items():
        yield f"  does not fit: {service}: {text}"
    for service, text in agent.health_check_errors.items():
        yield f"  health check not answered: {service}: {text}"
    for text in agent.conflicts:
        yield f"  conflict: {text}"
    for text in agent.misconfigured:
        yield f"  misconfigured and ignored: {text}"
    for text in agent.addresses_refused:
        yield f"  address refused: {text}"
    for text in agent.without_table:
        yield f"  no lookup table: {text}"


def _network_lines(agent: AgentReport) -> Iterator[str | TextTable[Any]]:
    """Nothing if the agent does not report it, because it is starting."""
    if chosen := agent.forwarding:
        way = _WAYS.get(chosen.way, chosen.way)
        yield f"  masqueraded packets are {way}; {chosen.why}"
    if unknown := agent.unknown_connections:
        yield f"  unknown connections to Services are {unknown.way}; {unknown.why}"
    if tunnels := agent.tunnels:
        yield from _dsr_lines(agent, tunnels)
    for each in agent.xdp:
        yield f"  XDP at {each.name}: {each.mode or 'none, ' + each.why}"
    if devices := agent.devices:
        yield ""
        yield TextTable(positions("DEVICES", "KIND", "WHY"), _by_kind(devices))


def _dsr_lines(agent: AgentReport, tunnels: TunnelsReport) -> Iterator[str]:
    yield (
        f"  direct server return for {tunnels.services} Services on UDP port {tunnels.port}: "
        f"tunnels to {tunnels.pods} pods, from {tunnels.peers} addresses of other nodes"
    )
    for family, why in tunnels.without.items():
        yield f"  no direct server return over {family}: {why}"
    if tunnels.keys:
        yield f"  tunnels have a key; {tunnels.keys} accepted"
    if tunnels.key_trouble:
        yield f"  cannot read the keys of tunnels: {tunnels.key_trouble}"
    if (peers := agent.dsr_peers) and peers.asked:
        each = "a node counts once for each family"
        yield f"  {peers.reachable} of {peers.asked} nodes answer there ({each})"
    for why, nodes in silent_nodes(agent).items():
        yield f"  SNAT instead of direct server return to {_counted(nodes)}: {why}"


def _by_kind(devices: Iterable[DeviceReport]) -> Iterator[tuple[str, str, str]]:
    """A line for each kind and reason."""
    names = defaultdict[tuple[str, str], list[str]](list)
    for each in devices:
        names[each.kind, each.why].append(each.name)
    for (kind, why), some in sorted(names.items()):
        yield _counted(some), kind, why


def _counted(names: Sequence[str]) -> str:
    if len(names) <= _NAMED_DEVICES:
        return ", ".join(names)
    return f"{len(names)}: {', '.join(names[:_NAMED_DEVICES])} ..."


def _loaded_lines(loaded: Loaded, *, is_wide: bool) -> Iterator[str | TextTable[Any]]:
    yield ""
    yield f"Loaded from {loaded.generation}, source {loaded.source_hash[:12]}"
    yield ""
    yield TextTable(_HOOKS, loaded.hooks)
    yield ""
    if is_wide:
        yield TextTable(_MAPS, loaded.maps)
    else:
        yield _fullest(loaded.maps)
    yield ""
    flows = [(_FLOW_TABLES[name], used) for name, used in loaded.flows.items()]
    yield TextTable(positions("FLOWS", "ENTRIES"), flows)
    yield ""
    dropped = [(reason, count) for reason, count in loaded.dropped.items() if count]
    yield TextTable(positions("DROPPED, REFUSED", "COUNT"), dropped or [("nothing", 0)])


def _fullest(maps: "Sequence[MapFill]") -> str:
    memory = size(sum(each.memory for each in maps))
    most = max(maps, key=lambda each: each.used / each.max)
    return (
        f"{len(maps)} maps, {memory}; the fullest, {most.name}, has {most.used} of {most.max} "
        "elements (-o wide lists all)"
    )


_HOOKS: "Sequence[Column[Attachment]]" = (
    Column("HOOK", lambda each: each.hook),
    Column("AT", lambda each: each.place or "(gone)"),
    Column("PROGRAM", lambda each: each.program),
)
_MAPS: "Sequence[Column[MapFill]]" = (
    Column("MAP", lambda each: each.name),
    Column("USED", lambda each: each.used),
    Column("MAX", lambda each: each.max),
    Column("MEMORY", lambda each: size(each.memory)),
)
