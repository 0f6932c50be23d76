# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb services: the frontends of the cluster, and where nodes disagree about them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add
from typing import Any, get_type_hints

import click
import msgspec

from ebpflb.cli.options import Output, check_served, chosen, list_options, watch_option
from ebpflb.cli.table import Column, TextTable
from ebpflb.config.values import socket_address
from ebpflb.kubectl.asking import AgentQuestion, AskedAgents
from ebpflb.kubectl.cluster import Cluster, cluster_command, some
from ebpflb.kubectl.relay import RelayQuestion
from ebpflb.model.compact import Count, by_form
from ebpflb.model.compact.frontends import (
    COUNTS,
    SERVED,
    FrontendForm,
    FrontendName,
    FrontendRow,
    FrontendSettings,
    form_decoder,
    rows_decoder,
)
from ebpflb.model.plan import IfEmpty
from ebpflb.words.backup import BackupUse
from ebpflb.words.observe import FRONTENDS

# What a node does with clients outside that it has no endpoint for.
_OUTSIDE = {each.value: each.fate.value for each in IfEmpty}
_BACKUP_USES = {each.value: each.shown for each in BackupUse}


@dataclass(frozen=True, slots=True)
class FrontendOfCluster:
    """Counts are sums over the nodes. backends -> how many nodes have them.

    outside: under external policy Local, what happens to clients from outside -> on which nodes.
    missing_on: nodes without it. differences: what differs from most nodes -> where.
    """

    name: FrontendName
    settings: Mapping[str, Any]
    counts: Mapping[str, int]
    backends: Mapping[str, int]
    outside: Mapping[str, list[str]]
    missing_on: list[str]
    differences: Mapping[str, list[str]]

    @property
    def is_disputed(self) -> bool:
        return bool(self.missing_on or self.differences)


_PARTS = {"name", "settings", "counts"}
_PlainFrontend = msgspec.defstruct(
    "_PlainFrontend",
    [
        *get_type_hints(FrontendName).items(),
        *get_type_hints(FrontendSettings).items(),
        *((name, Count) for name in COUNTS),
        *(each for each in get_type_hints(FrontendOfCluster).items() if each[0] not in _PARTS),
    ],
)
_items_decoder = msgspec.json.Decoder(list[_PlainFrontend])  # type: ignore[valid-type]


@dataclass(slots=True)
class _Having:
    """The nodes that have a form, and what they say besides. backends: those not in the form."""

    form: FrontendForm
    nodes: list[str] = field(default_factory=list)
    counts: Sequence[int] = (0,) * len(COUNTS)
    backends: Counter[str] = field(default_factory=Counter)
    outside: dict[str, list[str]] = field(default_factory=dict)

    def add(self, node: str, row: FrontendRow) -> None:
        self.nodes.append(node)
        if any(row.counts):
            self.counts = list(map(add, self.counts, row.counts))
        if row.more:
            self.backends.update(row.more)
        if row.outside:
            self.outside.setdefault(row.outside, []).append(node)


@click.command(
    epilog="""\b
One line for each frontend, with its number of backends and the sums of its counters over all
nodes. Under external traffic policy Local, the next line says which nodes serve clients outside,
and which drop them because they have no endpoint. Lines with !! show the nodes where the
frontend is missing, or differs from most nodes. Nodes differ for a moment while a change is under
way: try again. With topology hints they always differ, and while only some of them spill over.
Backends under internal traffic policy Local are not compared.

\b
Exit status 1 if nodes disagree, or if one does not answer.

\b
Examples:
  kubectl ebpflb services -A
  kubectl ebpflb services -w
  kubectl ebpflb services -n shop --service web -o wide
  kubectl ebpflb services -A -o jsonl | jq 'select(.missing_on != [])'
"""
)
@watch_option
@list_options
@cluster_command
def services(cluster: Cluster, watch: bool, output: Output, **given: Any) -> None:
    """List the frontends, and where nodes disagree about them."""
    namespace, name = chosen(given, cluster.namespace)
    only = {"service": name} if name else {"namespace": namespace}
    below = partial(_below, is_wide=output == "wide")

    asked = RelayQuestion(FRONTENDS, namespace, {"service": name})

    def look() -> list[FrontendOfCluster]:
        found = cluster.asked(asked, frontends_of, lambda: merged(cluster, only))
        if not (watch or cluster.failures):
            check_served(name, found, ())
        return found

    frontends = cluster.show(
        look,
        lambda found: [TextTable(COLUMNS, found, below)],
        output,
        watch=watch,
        plain=plain_frontends,
    )
    if any(each.is_disputed for each in frontends):
        cluster.exit_status = 1


def merged(cluster: AskedAgents, options: Mapping[str, str]) -> list[FrontendOfCluster]:
    """Those that all nodes have, together. `options`: of `ebpflb services`."""
    having: dict[bytes, _Having] = {}

    def read(content: bytes) -> list[tuple[_Having, FrontendRow]]:
        rows = rows_decoder.decode(content)
        return by_form(rows, having, lambda form: _Having(form_decoder.decode(form)))

    nodes = set[str]()
    for agent, rows in cluster.ask_compact(AgentQuestion("services", options), read):
        nodes.add(agent.node)
        for each, row in rows:
            each.add(agent.node, row)
    found = defaultdict[FrontendName, list[_Having]](list)
    for each in having.values():
        if each.nodes:
            found[each.form.name].append(each)
    return [_frontend(*each, nodes) for each in sorted(found.items())]


def _frontend(
    name: FrontendName, found: Sequence[_Having], answered: set[str]
) -> FrontendOfCluster:
    """`answered`: the nodes that should have it."""
    usual = max(found, key=lambda each: len(each.nodes)).form
    backends, outside = Counter[str](), defaultdict[str, list[str]](list)
    differences = defaultdict[str, list[str]](list)
    counts = map(sum, zip(*(each.counts for each in found), strict=True))
    for each in found:
        backends.update(dict.fromkeys(each.form.backends, len(each.nodes)))
        backends.update(each.backends)
        for what, nodes in each.outside.items():
            outside[_OUTSIDE.get(what, what)] += nodes
        for text in _differences(each.form, usual):
            differences[text] += each.nodes
    return FrontendOfCluster(
        name,
        usual.settings._asdict(),
        dict(zip(COUNTS, counts, strict=True)),
        dict(sorted(backends.items())),
        {what: sorted(nodes) for what, nodes in sorted(outside.items())},
        sorted(answered.difference(*(each.nodes for each in found))),
        {text: sorted(nodes) for text, nodes in sorted(differences.items())},
    )


def _differences(form: FrontendForm, usual: FrontendForm) -> Iterator[str]:
    settings = form.settings._asdict().items()
    for (key, value), theirs in zip(settings, usual.settings, strict=True):
        if theirs != value:
            yield f"{key} is {_shown(value)}, not {_shown(theirs)}"
    if missing := set(usual.backends).difference(form.backends):
        yield f"lacks {some(missing)}"
    if more := set(form.backends).difference(usual.backends):
        yield f"also has {some(more)}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value) or "none"


def plain_frontends(frontends: Iterable[FrontendOfCluster]) -> list[dict[str, Any]]:
    return [
        {
            **each.name._asdict(),
            **each.settings,
            **each.counts,
            "backends": each.backends,
            "outside": each.outside,
            "missing_on": each.missing_on,
            "differences": each.differences,
        }
        for each in frontends
    ]


def frontends_of(items: bytes) -> list[FrontendOfCluster]:
    """The inverse of plain_frontends(), from JSON. ValueError or DecodeError."""
    return sorted(map(_of_plain, _items_decoder.decode(items)), key=lambda each: each.name)


def _of_plain(item: msgspec.Struct) -> FrontendOfCluster:
    plain = msgspec.structs.asdict(item)
    return FrontendOfCluster(
        FrontendName(*(plain.pop(key) for key in FrontendName._fields)),
        {key: plain.pop(key) for key in FrontendSettings._fields},
        {key: plain.pop(key) for key in COUNTS},
        **plain,
    )


def _below(each: FrontendOfCluster, *, is_wide: bool) -> Iterator[str]:
    if is_wide:
        for backend, nodes in each.backends.items():
            yield f"  -> {backend} on {nodes} node{'s' * (nodes != 1)}"
    if each.outside:
        yield f"  clients outside: {_fates(each.outside, wide=is_wide)}"
    if each.missing_on:
        yield f"  !! missing on {some(each.missing_on)}"
    yield from (f"  !! {some(nodes)}: {what}" for what, nodes in each.differences.items())


def _fates(outside: Mapping[str, Sequence[str]], *, wide: bool) -> str:
    """Those that are served first."""
    every = sorted(outside.items(), key=lambda each: (each[0] != SERVED, each[0]))
    named = ((what, some(nodes, len(nodes) if wide else 3)) for what, nodes in every)
    return "; ".join(f"{what} by {nodes}" for what, nodes in named)


def _policy(each: FrontendOfCluster) -> object:
    kind = "internal_policy" if each.name.type == "ClusterIP" else "external_policy"
    backup = _BACKUP_USES.get(each.settings["backup"], "")
    settings = each.settings.get(kind, "-"), backup, each.settings["limits"]
    return ", ".join(filter(None, settings))


def _count(name: str) -> Column[FrontendOfCluster]:
    return Column(name.upper(), lambda each: each.counts[name])


COLUMNS: Sequence[Column[FrontendOfCluster]] = (
    Column("", lambda each: each.name.protocol),
    Column("FRONTEND", lambda each: socket_address(each.name.address, each.name.port)),
    Column("TYPE", lambda each: each.name.type),
    Column("SERVICE", lambda each: each.name.service_port),
    Column("POLICY", _policy),
    Column("BACKENDS", lambda each: len(each.backends)),
    *map(_count, COUNTS),
)
