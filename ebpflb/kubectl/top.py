# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb top: what each Service carries on all nodes together, and what is in trouble."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from operator import itemgetter
from typing import Any

import click

from ebpflb.cli.render import (
    Output,
    all_namespaces_option,
    emit,
    namespace_option,
    output_option,
    watch_option,
)
from ebpflb.cli.top_table import COLUMNS, ordered, print_table, sample_options
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.cluster import Cluster, cluster_command, listed_namespace
from ebpflb.model.flow import BackendRate, Balance, ServiceRate, balance

_COMMAND = ("ebpflb", "top", "--once", "-o", "json")
_SUMS = (
    *("connections", "active", "refused", "dropped", "failed", "retransmits"),
    *("original_bytes", "reply_bytes"),
)
_FIELDS = [each.name for each in fields(ServiceRate)]
# Of very many backends.
_backend_sums = itemgetter("connections", "active", "failed", "original_bytes", "reply_bytes")
_backend_fields = itemgetter(*(each.name for each in fields(BackendRate)))

Name = tuple[str, str, str, str]
Place = tuple[str, int]


@click.command(
    epilog="""\b
The columns are those of `ebpflb top --help`; numbers are sums over all nodes. A trouble that only
some nodes see is followed by how many do.

\b
Examples:
  kubectl ebpflb top -A
  kubectl ebpflb top -n shop --sort failures --backends
  kubectl ebpflb top -A --watch
  kubectl ebpflb top -A -o jsonl | jq 'select(.troubles != [])'
"""
)
@watch_option
@sample_options
@namespace_option
@all_namespaces_option
@output_option
@cluster_command
def top(cluster: Cluster, watch: bool, namespace: str | None, **given: Any) -> None:
    """Show what each Service carries on all nodes together, and which one is in trouble."""
    chosen = listed_namespace(cluster, namespace, every=given["all_namespaces"])
    if given["interval"] >= cluster.access.seconds:
        raise click.UsageError("--timeout must be longer than --interval")
    sample = partial(_sample, cluster, given["interval"], chosen)
    output = given["output"]

    def show(services: list[ServiceRate]) -> None:
        _show(ordered(services, given["sort"]), output, backends=given["backends"])

    if watch:
        cluster.watch(sample, show, output, pause_seconds=0)
    show(sample())


def _show(services: list[ServiceRate], output: Output, *, backends: bool) -> None:
    if output in ("table", "wide"):
        print_table(services, backends=backends, is_wide=output == "wide", of_columns=_COLUMNS)
    else:
        emit(services, output, lambda: ())


def _state(backend: BackendRate) -> str:
    """Without `local` and `remote`, which differ from node to node."""
    if backend.standing in ("ejected", "trial"):
        return backend.standing
    if backend.offered:
        return "terminating" if backend.terminating else ""
    return "ending" if backend.terminating else "draining"


_COLUMNS = [
    each._replace(of_backend=_state) if each.title == "BACKENDS" else each for each in COLUMNS
]


def _sample(cluster: Cluster, interval: float, namespace: str) -> list[ServiceRate]:
    found = defaultdict[Name, _Sums](_Sums)
    asked = 0
    for _, services in cluster.ask_json([*_COMMAND, f"--interval={interval:g}"], _services):
        asked += 1
        for each in services:
            if namespace in ("", each.namespace):
                name = each.namespace, each.service, each.port, each.protocol
                found[name].add(each)
    return [sums.merged(name, asked) for name, sums in found.items()]


def _services(_: RemoteAgent, content: Any) -> list[ServiceRate]:
    return [_service(each) for each in content["services"]]


def _service(plain: Mapping[str, Any]) -> ServiceRate:
    known = {name: plain[name] for name in _FIELDS}
    # What cannot be added up is nonsense, and is found here.
    sum(plain[name] for name in _SUMS)
    known["troubles"] = tuple(map(str, plain["troubles"]))
    known["backends"] = tuple(map(_backend, plain["backends"]))
    return ServiceRate(**known)


def _backend(plain: Mapping[str, Any]) -> BackendRate:
    sum(_backend_sums(plain))
    return BackendRate(*_backend_fields(plain))


@dataclass(slots=True)
class _Sums:
    """Of one Service port over the nodes. far: how many of the `based` go to other nodes."""

    numbers: Counter[str] = field(default_factory=Counter)
    far: float = 0.0
    based: float = 0.0
    troubles: Counter[str] = field(default_factory=Counter)
    backends: dict[Place, BackendRate] = field(default_factory=dict)

    def add(self, service: ServiceRate) -> None:
        for name in _SUMS:
            self.numbers[name] += getattr(service, name)
        self.troubles.update(service.troubles)
        if service.cross_node_share is not None:
            base = sum(each.connections for each in service.backends) or service.active
            self.based += base
            self.far += base * service.cross_node_share
        for each in service.backends:
            place = each.address, each.port
            known = self.backends.get(place)
            self.backends[place] = _added(known, each) if known else each

    def merged(self, name: Name, asked: int) -> ServiceRate:
        """`asked`: how many nodes have answered."""
        families = defaultdict[bool, list[BackendRate]](list)
        for _, each in sorted(self.backends.items()):
            families[":" in each.address].append(each)
        groups = [_Family.of(each) for each in families.values()]
        numbers: dict[str, Any] = {each: self.numbers[each] for each in _SUMS}
        busiest = max(groups, key=lambda group: group.every, default=_Family.of([]))
        return ServiceRate(
            *name,
            **numbers,
            endpoints=sum(each.offered for each in self.backends.values()),
            largest_share=busiest.balance.largest,
            even_share=busiest.balance.even,
            cross_node_share=self.far / self.based if self.based else None,
            troubles=tuple(self._troubles(asked)),
            backends=tuple(each for group in groups for each in group.backends),
        )

    def _troubles(self, asked: int) -> Iterator[str]:
        for trouble, nodes in self.troubles.most_common():
            some = "" if nodes == asked else f" ({nodes} node{'s' * (nodes != 1)})"
            yield f"{trouble}{some}"


def _added(one: BackendRate, other: BackendRate) -> BackendRate:
    """A backend as two nodes see it."""
    return BackendRate(
        address=one.address,
        port=one.port,
        local=one.local or other.local,
        terminating=one.terminating or other.terminating,
        offered=one.offered or other.offered,
        connections=one.connections + other.connections,
        active=one.active + other.active,
        failed=one.failed + other.failed,
        original_bytes=one.original_bytes + other.original_bytes,
        reply_bytes=one.reply_bytes + other.reply_bytes,
        share=None,
        trouble=one.trouble or other.trouble,
        standing=max(one.standing, other.standing, key=_STANDINGS.index),
    )


# The one that is told if nodes differ comes last.
_STANDINGS = ("unwatched", "watched", "trial", "ejected")


@dataclass(frozen=True, slots=True)
class _Family:
    """The backends of one address family, with their shares. every: connections of all."""

    backends: list[BackendRate]
    every: float
    balance: Balance

    @classmethod
    def of(cls, backends: list[BackendRate]) -> "_Family":
        new = [each.connections for each in backends]
        counts = new if any(new) else [float(each.active) for each in backends]
        every = sum(counts)
        shared = [
            replace(each, share=count / every if every else None)
            for each, count in zip(backends, counts, strict=True)
        ]
        return cls(shared, every, balance(counts, sum(each.offered for each in backends)))
