# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb services: the frontends of the cluster, and where nodes disagree about them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import click

from ebpflb.cli.render import (
    Output,
    all_namespaces_option,
    columns,
    emit,
    full_name,
    namespace_option,
    output_option,
)
from ebpflb.config.values import socket_address
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.cluster import Cluster, cluster_command, listed_namespace, some

_COMMAND = ("ebpflb", "maps", "dump", "-o", "json")
_COUNTS = ("connections", "refused", "dropped")
# What is the same on all nodes, unless one is behind.
_SETTINGS = (
    *("internal_policy", "external_policy", "affinity_timeout", "scheduler", "dsr"),
    "source_ranges",
)


class FrontendName(NamedTuple):
    """Which frontend, in the order of lists."""

    namespace: str
    service: str
    port_name: str
    type: str
    protocol: str
    address: str
    port: int


class Form(NamedTuple):
    """What one node has of a frontend, as far as all nodes should have the same.

    backends: for clients on the node; empty under internal policy Local, where they differ.
    """

    settings: tuple[tuple[str, str], ...]
    backends: frozenset[str]


class FrontendOfNode(NamedTuple):
    name: FrontendName
    form: Form
    backends: frozenset[str]
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class FrontendOfCluster:
    """Counts are sums over the nodes. backends -> how many nodes have them.

    missing_on: nodes without it. differences: what is not as on most nodes -> on which.
    """

    name: FrontendName
    settings: Mapping[str, str]
    counts: Mapping[str, int]
    backends: Mapping[str, int]
    missing_on: list[str]
    differences: Mapping[str, list[str]]

    @property
    def is_disputed(self) -> bool:
        return bool(self.missing_on or self.differences)


@dataclass(slots=True)
class _Found:
    """What the answers so far tell of a frontend."""

    forms: dict[Form, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    backends: Counter[str] = field(default_factory=Counter)


@click.command(
    epilog="""\b
One line for each frontend: its backends on all nodes together, and sums of what it carried. Below
it stand the nodes that do not have it, and those that have it otherwise than most do. While a
change is under way, nodes differ for a moment: look again. With topology hints they always do.
Backends under internal traffic policy Local are not compared.

\b
Exit status 1 if nodes disagree, or one does not answer.

\b
Examples:
  kubectl ebpflb services -A
  kubectl ebpflb services -n shop --service web -o wide
  kubectl ebpflb services -A -o jsonl | jq 'select(.missing_on != [])'
"""
)
@click.option("--service", metavar="[NS/]NAME", help="Only this Service.")
@namespace_option
@all_namespaces_option
@output_option
@cluster_command
def services(
    cluster: Cluster,
    service: str | None,
    namespace: str | None,
    all_namespaces: bool,
    output: Output,
) -> None:
    """Show the frontends of the cluster, and where nodes disagree about them."""
    chosen = listed_namespace(cluster, namespace, every=all_namespaces)
    name = full_name(service, chosen or cluster.namespace) if service else ""
    command = [*_COMMAND, *([f"--service={name}"] if name else [])]
    merged = _Merged("" if name else chosen)
    for agent, found in cluster.ask_json(command, _frontends):
        merged.add(agent, found)
    frontends = merged.frontends()
    plain = [_plain(each) for each in frontends]
    emit(plain, output, lambda: _lines(frontends, wide=output == "wide"))
    if any(each.is_disputed for each in frontends):
        cluster.exit_status = 1


def _frontends(_: RemoteAgent, content: Any) -> list[FrontendOfNode]:
    return [_frontend(each) for each in content]


def _frontend(each: Mapping[str, Any]) -> FrontendOfNode:
    kinds = str, str, str, str, str, str, int
    values = (each[name] for name in FrontendName._fields)
    name = FrontendName(*(kind(value) for kind, value in zip(kinds, values, strict=True)))
    local = _addresses(each["local"]["backends"])
    # Mostly they are the same, and there may be very many.
    same = each["local"] == each["others"]
    every = local if same else local | _addresses(each["others"]["backends"])
    differs = name.type == "ClusterIP" and each["internal_policy"] == "Local"
    settings = tuple((key, str(each[key])) for key in _SETTINGS if key in each)
    form = Form(settings, frozenset() if differs else local)
    return FrontendOfNode(name, form, every, {key: int(each[key]) for key in _COUNTS})


def _addresses(backends: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(socket_address(str(each["address"]), int(each["port"])) for each in backends)


class _Merged:
    """The frontends of a namespace, or of all, from the answers of nodes one by one."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._nodes: list[str] = []
        self._found = defaultdict[FrontendName, _Found](_Found)

    def add(self, agent: RemoteAgent, frontends: Iterable[FrontendOfNode]) -> None:
        self._nodes.append(agent.node)
        for each in frontends:
            if self._namespace in ("", each.name.namespace):
                found = self._found[each.name]
                found.forms.setdefault(each.form, []).append(agent.node)
                found.counts.update(each.counts)
                found.backends.update(each.backends)

    def frontends(self) -> list[FrontendOfCluster]:
        return [self._frontend(*each) for each in sorted(self._found.items())]

    def _frontend(self, name: FrontendName, found: _Found) -> FrontendOfCluster:
        usual = max(found.forms, key=lambda form: len(found.forms[form]))
        having = {node for nodes in found.forms.values() for node in nodes}
        differences = defaultdict[str, list[str]](list)
        for form, nodes in found.forms.items():
            for text in _differences(form, usual):
                differences[text] += nodes
        return FrontendOfCluster(
            name,
            dict(usual.settings),
            dict(found.counts),
            dict(sorted(found.backends.items())),
            sorted(set(self._nodes) - having),
            {text: sorted(nodes) for text, nodes in sorted(differences.items())},
        )


def _differences(form: Form, usual: Form) -> Iterator[str]:
    theirs = dict(usual.settings)
    for key, value in form.settings:
        if theirs.get(key) != value:
            yield f"{key} is {value}, not {theirs.get(key)}"
    if missing := usual.backends - form.backends:
        yield f"lacks {some(missing)}"
    if more := form.backends - usual.backends:
        yield f"also has {some(more)}"


def _plain(frontend: FrontendOfCluster) -> dict[str, Any]:
    return {
        **frontend.name._asdict(),
        **frontend.settings,
        **frontend.counts,
        "backends": frontend.backends,
        "missing_on": frontend.missing_on,
        "differences": frontend.differences,
    }


def _lines(frontends: Iterable[FrontendOfCluster], *, wide: bool) -> Iterator[str]:
    header = ("FRONTEND", "TYPE", "SERVICE", "POLICY", "BACKENDS")
    numbers = ("CONNECTIONS", "REFUSED", "DROPPED")
    shown = list(frontends)
    header_line, *lines = columns([("", *header, *numbers), *map(_row, shown)])
    yield header_line
    for each, line in zip(shown, lines, strict=True):
        yield line
        if wide:
            for backend, nodes in each.backends.items():
                yield f"  -> {backend} on {nodes} node{'s' * (nodes != 1)}"
        if each.missing_on:
            yield f"  !! missing on {some(each.missing_on)}"
        yield from (f"  !! {some(nodes)}: {what}" for what, nodes in each.differences.items())


def _row(each: FrontendOfCluster) -> tuple[object, ...]:
    name = each.name
    policy = "internal_policy" if name.type == "ClusterIP" else "external_policy"
    port = f":{name.port_name}" if name.port_name else ""
    return (
        name.protocol,
        socket_address(name.address, name.port),
        name.type,
        f"{name.namespace}/{name.service}{port}",
        each.settings.get(policy, "-"),
        len(each.backends),
        *(each.counts[key] for key in _COUNTS),
    )
