# SPDX-License-Identifier: Apache-2.0
"""ebpflb doctor: what keeps Services on this node from working, or soon may."""

import http
import os
import re
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import click

from ebpflb import __version__
from ebpflb.cli.agent_client import (
    AGENT_DOWN,
    Page,
    fetch,
    fetch_json,
    metrics_address_option,
    silent_nodes,
)
from ebpflb.cli.options import Output, output_option
from ebpflb.cli.pinned import bpffs_option, pin_root
from ebpflb.cli.render import emit
from ebpflb.cli.status import look
from ebpflb.config.settings import setting
from ebpflb.config.values import node_port_range
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.errors import ProbeError
from ebpflb.model.agent_report import AgentReport, TunnelsReport

CHECK = "agent"

_ANSWER_SECONDS = 2.0
_START = "start it; until then the loaded programs serve their last state"
_LATENCY = "kubeproxy_network_programming_duration_seconds_sum"
_SUM = re.compile(rf"^{_LATENCY}\{{.*\}} (\S+)$", re.MULTILINE)
# Fields of AgentReport that list what is not served: severity, wording, what to do.
_TROUBLES = {
    "attach_errors": (Severity.ERROR, "is not served", "see the error; the agent retries"),
    "refused": (
        Severity.ERROR,
        "keeps its old state",
        "it does not fit into the maps: see `ebpflb maps list`",
    ),
    "source_errors": (
        Severity.WARNING,
        "cannot be read",
        "correct it; its last readable version is still served",
    ),
    "health_check_errors": (
        Severity.WARNING,
        "has a healthCheckNodePort that is not answered",
        "free the port",
    ),
}
_TAKE_PART = (
    "check that an agent with `dsr` and the same `dsr-port` runs there, that it knows this node's "
    "address, and that firewalls allow that port"
)
_SELECTORS = ("service-proxy-name", "service-selector", "namespace-selector")
_DSR = "dsr"
_NODE_IP = "set the kubelet's --node-ip to an address of this machine, or set `dsr: off` here"
_KEYS = "write one or two keys into the file (docs/dsr.md), readable for the agent"
_REACH = "check the connection to the API server; its last known state is served"


@dataclass(frozen=True, slots=True)
class Devices:
    """The DeviceSettings of an agent."""

    host_devices: tuple[str, ...]
    workload_devices: tuple[str, ...]
    nodeport_addresses: tuple[str, ...]
    bind_address: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """`healthy`: the findings contain no warnings and no errors."""

    healthy: bool
    findings: list[Finding]


@click.command(
    epilog="""\b
It changes nothing, and works with or without an agent. Settings such as devices and the cgroup
come from the agent, or from the environment and the defaults if no agent is running.

\b
Exit status: 0 if there are only `ok` and `note`; 1 if there is a `warning` (something may fail)
or an `error` (something does fail).

\b
Examples:
  ebpflb doctor
  ebpflb doctor -o json | jq '.findings[] | select(.severity == "error")'
  kubectl ebpflb doctor                             # on all nodes
  kubectl -n kube-system exec POD -- ebpflb doctor  # in the agent's pod of one node
"""
)
@bpffs_option
@click.option("--cgroup-root", metavar="DIR", help="Cgroup of the socket hooks.  [the agent's]")
@metrics_address_option
@output_option
def doctor(
    bpffs_root: str | None,
    cgroup_root: str | None,
    metrics_bind_address: str | None,
    output: Output,
) -> None:
    """Find what keeps Services from working on this node.

    It prints one line per finding, with what to do about it.
    """
    if os.geteuid() != 0:
        raise ProbeError("`ebpflb doctor` needs root: run it as root or with sudo")
    address = setting("metrics-bind-address", metrics_bind_address, os.environ)
    in_force = (fetch_json(address, "/configz") or {}).get("ebpflb", {})
    root = pin_root(bpffs_root)
    found = [*of_agent(address, root, in_force), *_of_node(root, cgroup_root, in_force)]
    diagnosis = Diagnosis(not any(each.is_trouble for each in found), found)
    emit(diagnosis, output, lambda: _lines(diagnosis), found)
    if not diagnosis.healthy:
        raise click.exceptions.Exit(1)


def of_agent(address: str, root: Path, in_force: Mapping[str, Any]) -> Iterator[Finding]:
    """Whether an agent runs, and what it says of itself; `in_force`: its settings."""
    node = look(root, address)
    status = node.agent
    if status is None:
        is_serving = node.state == AGENT_DOWN
        what = node.shown if is_serving else "no agent answers there"
        yield Finding(Severity.WARNING, CHECK, address or "(no address)", what, _START)
        return
    yield from check_agent(status)
    yield from check_xdp(status)
    yield from check_dsr(status)
    health = in_force.get("healthz-bind-address", "")
    yield from check_health_port(fetch(health, "/healthz"), health)
    yield from check_query_socket(in_force.get("query-socket") or "")
    if metrics := fetch(address, "/metrics"):
        yield from check_triggers(metrics.body.decode(errors="replace"))


def check_agent(status: AgentReport) -> list[Finding]:
    what = f"{status.version} runs (pid {status.pid}), last sync {status.last_sync}"
    return all_well(CHECK, what, [*_state(status), *_troubles(status)])


def check_xdp(status: AgentReport) -> Iterator[Finding]:
    """How XDP is attached to each uplink; nothing if it is off."""
    for each in status.xdp:
        is_there = f"lb_xdp is attached ({each.mode})"
        what = is_there if each.mode else f"no XDP, tc serves it: {each.why}"
        yield Finding(Severity.NOTE, "xdp", each.name, what)


def check_dsr(status: AgentReport) -> Iterator[Finding]:
    """Direct server return; nothing if it is off."""
    if tunnels := status.tunnels:
        what = f"tunnels lead to {tunnels.pods} pods on other nodes"
        troubles = [*_without_tunnels(tunnels), *_silent(status, tunnels.port)]
        yield from all_well(_DSR, what, troubles)


def _without_tunnels(tunnels: TunnelsReport) -> Iterator[Finding]:
    for family, why in tunnels.without.items():
        yield Finding(Severity.WARNING, _DSR, family, f"is masqueraded: {why}", _NODE_IP)
    if why := tunnels.key_trouble:
        what = f"cannot read the keys of tunnels, which stay as they were: {why}"
        yield Finding(Severity.WARNING, _DSR, "", what, _KEYS)


def _silent(status: AgentReport, port: int) -> Iterator[Finding]:
    for why, nodes in silent_nodes(status).items():
        count = f"{len(nodes)} node{'s do' if len(nodes) > 1 else ' does'}"
        reason = "" if why == "no answer" else f" ({why})"
        what = (
            f"{count} not answer on UDP port {port}{reason}: {examples(nodes)}; "
            "their pods get SNAT instead of DSR"
        )
        yield Finding(Severity.WARNING, _DSR, "", what, _TAKE_PART)


def check_health_port(page: Page | None, address: str) -> Iterator[Finding]:
    """`page`: the /healthz page; `address`: where the agent listens, empty for nowhere."""
    if not address:
        return
    if page is None:
        what = "the health port does not answer: load balancers and probes consider the node dead"
        yield Finding(
            Severity.WARNING, CHECK, address, what, "see the agent's log: is the port taken?"
        )
    elif page.status != http.HTTPStatus.OK:
        what = "/healthz does not return 200, so load balancers skip this node"
        advice = "see the findings above, unless the Node is being removed"
        yield Finding(Severity.NOTE, CHECK, address, what, advice)


def check_query_socket(path: str) -> Iterator[Finding]:
    """`path`: the query socket for `ebpflb flows` and `explain`, empty for none."""
    if not path:
        return
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        try:
            asking.connect(path)
        except FileNotFoundError:
            what = "there is no query socket here: `ebpflb flows` cannot ask the agent"
            yield Finding(Severity.NOTE, CHECK, path, what, "run it where the agent runs")
        except OSError as error:
            what = f"the query socket does not answer: {error.strerror or error}"
            yield Finding(Severity.WARNING, CHECK, path, what, "see the agent's log")


def check_triggers(metrics: str) -> Iterator[Finding]:
    """Changes in force before their trigger time, by the /metrics page."""
    if any(float(each) < 0 for each in _SUM.findall(metrics)):
        what = "changes came from the future: the clocks of this node and the control plane differ"
        yield Finding(Severity.WARNING, "clock", "", what, "synchronise both (chrony, ntpd)")


def _state(status: AgentReport) -> Iterator[Finding]:
    if not status.healthy:
        what = "changes have not reached the kernel for a minute"
        yield Finding(Severity.ERROR, CHECK, "", what, "see the agent's log")
    elif not status.in_sync:
        what = "not in sync: the agent is starting, or a change is under way"
        yield Finding(
            Severity.WARNING, CHECK, "", what, "try again; if it persists, see the agent's log"
        )
    if status.version != __version__:
        what = f"has version {status.version}, this program has {__version__}"
        yield Finding(Severity.NOTE, CHECK, "", what)


def _troubles(status: AgentReport) -> Iterator[Finding]:
    for field, (severity, what, advice) in _TROUBLES.items():
        for where, text in getattr(status, field).items():
            if (field, where) == ("source_errors", "api"):
                yield Finding(severity, "api", "", f"the API server: {text}", _REACH)
            else:
                yield Finding(severity, CHECK, where, f"{what}: {text}", advice)
    for text in status.conflicts:
        advice = "give one of the two another address or port"
        yield Finding(Severity.WARNING, "addresses", "", text, advice)


def _of_node(root: Path, cgroup_root: str | None, in_force: Mapping[str, Any]) -> list[Finding]:
    from ebpflb.dataplane.doctor.checks import NodePaths, examine

    def chosen(name: str) -> Any:
        value = in_force[name] if name in in_force else setting(name, None, os.environ)
        return tuple(value) if isinstance(value, list) else value

    devices = Devices(*(chosen(each.name.replace("_", "-")) for each in fields(Devices)))
    given = (name for name in _SELECTORS if chosen(name))
    selector = next((f"--{name} {str(chosen(name))!r}" for name in given), "")
    node_ports = node_port_range(str(chosen("service-node-port-range")))
    return examine(NodePaths(root, _cgroup(cgroup_root, in_force), devices, node_ports, selector))


def _cgroup(flag: str | None, in_force: Mapping[str, Any]) -> Path:
    """The agent may have mounts of its own: its cgroup root counts only if it exists here."""
    of_agent = Path(in_force.get("cgroup-root", ""))
    if flag is None and of_agent.is_absolute() and of_agent.is_dir():
        return of_agent
    chosen: Path = setting("cgroup-root", flag, os.environ)
    return chosen


def _lines(diagnosis: Diagnosis) -> Iterator[str]:
    for each in diagnosis.findings:
        where = f"{each.where}: " if each.where else ""
        advice = f" -> {each.advice}" if each.advice else ""
        yield f"{each.severity:7}  {each.check:10}  {where}{each.what}{advice}"
    troubles = [each for each in diagnosis.findings if each.is_trouble]
    yield ""
    errors = sum(each.severity == "error" for each in troubles)
    counts = {"error": errors, "warning": len(troubles) - errors}
    yield ", ".join(f"{n} {what}{'' if n == 1 else 's'}" for what, n in counts.items())
