# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb services: the frontends of the cluster, and where nodes disagree about them."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import click

from ebpflb.cli.digests.frontends import (
    COUNTS,
    SERVED,
    CountsOfNode,
    FrontendForm,
    FrontendName,
    FrontendOfNode,
    Setting,
    read_short,
)
from ebpflb.cli.render import (
    Output,
    TextTable,
    all_namespaces_option,
    emit,
    full_name,
    namespace_option,
    output_option,
    service_option,
    watch_option,
)
from ebpflb.config.values import socket_address
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.cluster import Cluster, cluster_command, listed_namespace, some
from ebpflb.kubectl.short_answers import ShortAndWhole, ShortAnswers
from ebpflb.model.plan import IfEmpty

# What a node does with clients outside that it has no endpoint for.
_OUTSIDE = {each.value: each.fate.value for each in IfEmpty}

_Form = tuple[FrontendName, FrontendForm]
_Answer = Mapping[str, CountsOfNode | None]


@dataclass(frozen=True, slots=True)
class FrontendOfCluster:
    """Counts are sums over the nodes. backends -> how many nodes have them.

    outside: under external policy Local, what happens to clients from outside -> on which nodes.
    missing_on: nodes without it. differences: what differs from most nodes -> where.
    """

    name: FrontendName
    settings: Mapping[str, Setting]
    counts: Mapping[str, int]
    backends: Mapping[str, int]
    outside: Mapping[str, list[str]]
    missing_on: list[str]
    differences: Mapping[str, list[str]]

    @property
    def is_disputed(self) -> bool:
        return bool(self.missing_on or self.differences)


@dataclass(slots=True)
class _Found:
    """What the answers say about a frontend. forms -> the nodes that have them."""

    forms: dict[FrontendForm, list[str]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    backends: Counter[str] = field(default_factory=Counter)
    outside: dict[str, list[str]] = field(default_factory=dict)

    def add(
        self, form: FrontendForm, nodes: Sequence[str], counts: Mapping[str, CountsOfNode]
    ) -> None:
        """`counts`: by node."""
        self.forms.setdefault(form, []).extend(nodes)
        self.backends.update(dict.fromkeys(form.backends, len(nodes)))
        for node, each in counts.items():
            self.counts.update(dict(zip(COUNTS, each[: len(COUNTS)], strict=True)))
            self.backends.update(each.backends)
            if each.outside:
                self.outside.setdefault(each.outside, []).append(node)


@click.command(
    epilog="""\b
One line for each frontend, with its number of backends and the sums of its counters over all
nodes. Under external traffic policy Local, the next line says which nodes serve clients outside,
and which drop them because they have no endpoint. Lines with !! show the nodes where the
frontend is missing, or differs from most nodes. Nodes differ for a moment while a change is under
way: try again. With topology hints they always differ. Backends under internal traffic policy
Local are not compared.

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
@service_option
@namespace_option
@all_namespaces_option
@watch_option
@output_option
@cluster_command
def services(
    cluster: Cluster, service: str | None, watch: bool, output: Output, **given: Any
) -> None:
    """List the frontends, and where nodes disagree about them."""
    chosen = listed_namespace(cluster, given["namespace"], every=given["all_namespaces"])
    name = full_name(service, chosen or cluster.namespace) if service else ""
    asking = ShortAnswers[_Answer, _Form](cluster)
    look = partial(_look, asking, _commands(name, "" if name else chosen))
    show = partial(_show, output)
    if watch:
        cluster.watch(look, show, output)
    frontends = look()
    show(frontends)
    if any(each.is_disputed for each in frontends):
        cluster.exit_status = 1


def _look(
    asking: ShortAnswers[_Answer, _Form], commands: ShortAndWhole[_Answer, _Form]
) -> list[FrontendOfCluster]:
    answers, unsure = asking.ask(commands)
    return _merged(answers, asking.known, {each.node for each in unsure})


def _show(output: Output, frontends: Iterable[FrontendOfCluster]) -> None:
    plain = [_plain(each) for each in frontends]
    emit(plain, output, lambda: [TextTable(list(_rows(frontends, wide=output == "wide")))])


def _commands(service: str, namespace: str) -> ShortAndWhole[_Answer, _Form]:
    """Commands for one Service, for a namespace, or for all."""
    options = [f"--service={service}"] if service else []
    options += [f"--namespace={namespace}"] if namespace else []
    return ShortAndWhole(
        short=("ebpflb", "services", "--short", *options),
        whole=("ebpflb", "services", "-o", "json", *options),
        read_short=lambda _, content: read_short(content),
        read_whole=lambda _, content: _read(content),
    )


def _read(content: Iterable[Any]) -> tuple[_Answer, Mapping[str, _Form]]:
    found = {each.digest: each for each in map(FrontendOfNode.of, content)}
    answer = {digest: each.counts for digest, each in found.items()}
    return answer, {digest: (each.name, each.form) for digest, each in found.items()}


def _merged(
    answers: Mapping[RemoteAgent, _Answer], known: Mapping[str, _Form], unsure: Set[str]
) -> list[FrontendOfCluster]:
    """`unsure`: nodes that may have more than their answers say."""
    nodes = defaultdict[str, list[str]](list)
    counts = defaultdict[str, dict[str, CountsOfNode]](dict)
    for agent, answer in answers.items():
        for digest, counted in answer.items():
            nodes[digest].append(agent.node)
            if counted:
                counts[digest][agent.node] = counted
    found = defaultdict[FrontendName, _Found](_Found)
    for digest, having in nodes.items():
        if digest in known:
            name, form = known[digest]
            found[name].add(form, having, counts[digest])
    sure = {agent.node for agent in answers} - unsure
    return [_frontend(*each, sure) for each in sorted(found.items())]


def _frontend(name: FrontendName, found: _Found, sure: Set[str]) -> FrontendOfCluster:
    usual = max(found.forms, key=lambda form: len(found.forms[form]))
    differences = defaultdict[str, list[str]](list)
    for form, nodes in found.forms.items():
        for text in _differences(form, usual):
            differences[text] += nodes
    return FrontendOfCluster(
        name,
        dict(usual.settings),
        {each: found.counts[each] for each in COUNTS},
        dict(sorted(found.backends.items())),
        {_OUTSIDE.get(what, what): sorted(nodes) for what, nodes in sorted(found.outside.items())},
        sorted(sure - {node for nodes in found.forms.values() for node in nodes}),
        {text: sorted(nodes) for text, nodes in sorted(differences.items())},
    )


def _differences(form: FrontendForm, usual: FrontendForm) -> Iterator[str]:
    theirs = dict(usual.settings)
    for key, value in form.settings:
        if theirs.get(key) != value:
            yield f"{key} is {_shown(value)}, not {_shown(theirs.get(key))}"
    if missing := usual.backends - form.backends:
        yield f"lacks {some(missing)}"
    if more := form.backends - usual.backends:
        yield f"also has {some(more)}"


def _shown(value: Setting) -> str:
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    return str(value)


def _plain(frontend: FrontendOfCluster) -> dict[str, Any]:
    return {
        **frontend.name._asdict(),
        **frontend.settings,
        **frontend.counts,
        "backends": frontend.backends,
        "outside": frontend.outside,
        "missing_on": frontend.missing_on,
        "differences": frontend.differences,
    }


def _rows(
    frontends: Iterable[FrontendOfCluster], *, wide: bool
) -> Iterator[tuple[object, ...] | str]:
    yield (
        *("", "FRONTEND", "TYPE", "SERVICE", "POLICY", "BACKENDS"),
        *("CONNECTIONS", "FAILED", "REFUSED", "DROPPED"),
    )
    for each in frontends:
        yield _row(each)
        if wide:
            for backend, nodes in each.backends.items():
                yield f"  -> {backend} on {nodes} node{'s' * (nodes != 1)}"
        if each.outside:
            yield f"  clients outside: {_fates(each.outside, wide=wide)}"
        if each.missing_on:
            yield f"  !! missing on {some(each.missing_on)}"
        yield from (f"  !! {some(nodes)}: {what}" for what, nodes in each.differences.items())


def _fates(outside: Mapping[str, Sequence[str]], *, wide: bool) -> str:
    """Those that are served first."""
    every = sorted(outside.items(), key=lambda each: (each[0] != SERVED, each[0]))
    named = ((what, some(nodes, len(nodes) if wide else 3)) for what, nodes in every)
    return "; ".join(f"{what} by {nodes}" for what, nodes in named)


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
        *(each.counts[key] for key in COUNTS),
    )
