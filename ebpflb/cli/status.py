# SPDX-License-Identifier: Apache-2.0
"""ebpflb status: is this node served, by which programs, and is an agent running."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebpflb.cli.agent_client import ask_agent, metrics_address_option
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import Output, columns, emit, output_option, size
from ebpflb.config.settings import setting
from ebpflb.errors import PinError

if TYPE_CHECKING:
    from ebpflb.dataplane.attach.attachments import Attachment
    from ebpflb.dataplane.view.dump import MapFill

_FLOW_TABLES = {
    "lb_conntrack": "established",
    "lb_ct_short": "opening, ended, UDP",
    "lb_connections": "TCP sockets",
    "lb_sockets": "UDP sockets",
}


@dataclass(frozen=True, slots=True)
class Loaded:
    generation: str
    source_hash: str
    hooks: "list[Attachment]"
    missing_hooks: list[str]
    maps: "list[MapFill]"
    flows: dict[str, int]
    dropped: dict[str, int]


@dataclass(frozen=True, slots=True)
class Status:
    """`agent`: its /status page, None without an agent."""

    healthy: bool
    problems: list[str]
    agent: dict[str, Any] | None
    loaded: Loaded | None = None


@click.command(
    epilog="""\b
Exit status 1 when something is wrong: no agent, nothing loaded, a hook missing, or changes that
do not reach the kernel. Manifests that cannot be read are listed; their last readable content is
still served.

\b
Examples:
  ebpflb status
  ebpflb status -o json | jq .loaded.dropped
  ebpflb status --metrics-bind-address 127.0.0.1:20249
"""
)
@bpffs_option
@metrics_address_option
@output_option
def status(bpffs_root: str | None, metrics_bind_address: str | None, output: Output) -> None:
    """Show the agent, what is attached, how full the maps are, and why packets were dropped."""
    address = setting("metrics-bind-address", metrics_bind_address, os.environ)
    found = look(pin_root(bpffs_root), address)
    emit(found, output, lambda: _lines(found))
    if not found.healthy:
        raise click.exceptions.Exit(1)


def look(root: Path, metrics_address: str) -> Status:
    """A missing agent and missing pins are part of the status, not errors."""
    problems = []
    agent = ask_agent(metrics_address)
    if agent is None:
        problems.append(f"no agent answers at {metrics_address or '(no address)'}")
    elif not agent["healthy"]:
        problems.append("changes do not reach the kernel; see the agent's log")
    try:
        loaded = _loaded(root)
    except PinError as error:
        return Status(False, [*problems, str(error)], agent)
    if loaded.missing_hooks:
        problems.append(f"socket hooks not attached: {', '.join(loaded.missing_hooks)}")
    outdated = [each for each in loaded.hooks if each.place and not each.current]
    problems += [f"outdated program at {each.hook} {each.place}" for each in outdated]
    problems += [f"{at}: {text}" for at, text in (agent or {}).get("attach_errors", {}).items()]
    return Status(not problems, problems, agent, loaded)


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
        hooks=hooks,
        missing_hooks=missing_hooks(hooks),
        maps=fills,
        flows={each.name: each.used for each in fills if each.name in _FLOW_TABLES},
        dropped={word(reason): count for reason, count in sum_drops(read_drops(maps)).items()},
    )


def _lines(found: Status) -> Iterator[str]:
    yield f"Node is {'served' if found.healthy else 'NOT served as it should be'}"
    for problem in found.problems:
        yield f"  {problem}"
    if found.agent:
        yield from _agent_lines(found.agent)
    if found.loaded:
        yield from _loaded_lines(found.loaded)


def _agent_lines(agent: Mapping[str, Any]) -> Iterator[str]:
    state = "in sync" if agent["in_sync"] else "not in sync"
    yield ""
    yield f"Agent {agent['version']}, node {agent['node']}, pid {agent['pid']}: {state}"
    yield f"  started {agent['started']}, last sync {agent['last_sync'] or 'never'}"
    yield f"  {agent['services']} Services with {agent['frontends']} frontends"
    for feature, text in agent.get("kernel_lacks", {}).items():
        yield f"  the kernel lacks {feature}: {text}"
    for text in agent["source_errors"].values():
        yield f"  cannot read: {text}"
    for service, text in agent["refused"].items():
        yield f"  does not fit: {service}: {text}"
    for service, text in agent.get("health_check_errors", {}).items():
        yield f"  health check not answered: {service}: {text}"
    for text in agent["conflicts"]:
        yield f"  conflict: {text}"


def _loaded_lines(loaded: Loaded) -> Iterator[str]:
    yield ""
    yield f"Loaded from {loaded.generation}, source {loaded.source_hash[:12]}"
    yield ""
    hooks = [(each.hook, each.place or "(gone)", each.program) for each in loaded.hooks]
    yield from columns([("HOOK", "AT", "PROGRAM"), *hooks])
    yield ""
    maps = [(each.name, each.used, each.max, size(each.memory)) for each in loaded.maps]
    yield from columns([("MAP", "USED", "MAX", "MEMORY"), *maps])
    yield ""
    flows = [(_FLOW_TABLES[name], used) for name, used in loaded.flows.items()]
    yield from columns([("FLOWS", "ENTRIES"), *flows])
    yield ""
    dropped = [(reason, count) for reason, count in loaded.dropped.items() if count]
    yield from columns([("DROPPED, REFUSED", "COUNT"), *(dropped or [("nothing", 0)])])
