# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb top: what each Service carries on all nodes together, and which are in trouble."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import itemgetter
from typing import Any

import click

from ebpflb.cli.digests.rates import BACKEND_SUMS, SUMS, PortForm, read_short, short
from ebpflb.cli.render import (
    Output,
    all_namespaces_option,
    emit,
    full_name,
    namespace_option,
    output_option,
    service_option,
    watch_option,
)
from ebpflb.cli.top_table import (
    COLUMNS,
    chosen_by,
    going,
    ordered,
    print_table,
    sample_options,
)
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.cluster import Cluster, cluster_command, listed_namespace
from ebpflb.kubectl.rates import RatesOfCluster
from ebpflb.kubectl.short_answers import ShortAndWhole, ShortAnswers
from ebpflb.model.flow import BackendRate, ServiceRate

_FIELDS = [each.name for each in fields(ServiceRate)]
# Fast, for very many backends.
_backend_sums = itemgetter(*BACKEND_SUMS)
_backend_fields = itemgetter(*(each.name for each in fields(BackendRate)))


@click.command(
    epilog="""\b
`ebpflb top --help` describes the columns; numbers are sums over all nodes. A trouble that only
some nodes see is followed by their number. Idle Services are only shown with --all or --service.

\b
Examples:
  kubectl ebpflb top -A
  kubectl ebpflb top -n shop --sort failures --backends
  kubectl ebpflb top -n shop --service web --backends
  kubectl ebpflb top -A --watch
  kubectl ebpflb top -A -o jsonl | jq 'select(.troubles != [])'
"""
)
@watch_option
@sample_options
@service_option
@namespace_option
@all_namespaces_option
@output_option
@cluster_command
def top(cluster: Cluster, watch: bool, namespace: str | None, **given: Any) -> None:
    """Show traffic per Service on all nodes, and what is in trouble."""
    chosen = listed_namespace(cluster, namespace, every=given["all_namespaces"])
    wanted = full_name(given["service"], chosen or cluster.namespace) if given["service"] else ""
    chosen = wanted.partition("/")[0] or chosen
    if given["interval"] >= cluster.access.seconds:
        raise click.UsageError("--timeout must be longer than --interval")
    asking = ShortAnswers[Sequence[str], PortForm](cluster)
    output = given["output"]

    def sample() -> list[ServiceRate]:
        return chosen_by(wanted, _sample(asking, given["interval"], chosen))

    def show(services: list[ServiceRate]) -> None:
        found = ordered(services, given["sort"])
        every = given["every"] or bool(wanted)
        _show(found, output, backends=given["backends"], every=every)

    if watch:
        cluster.watch(sample, show, output, pause_seconds=0)
    show(sample())


def _show(services: list[ServiceRate], output: Output, *, backends: bool, every: bool) -> None:
    if output in ("table", "wide"):
        is_wide = output == "wide"
        print_table(services, backends=backends, every=every, is_wide=is_wide, of_columns=_COLUMNS)
    else:
        emit(services, output, lambda: ())


def _state(backend: BackendRate) -> str:
    """Without `local` and `remote`, which differ between nodes."""
    if backend.is_left_out:
        return backend.standing
    if backend.offered:
        return "terminating" if backend.terminating else ""
    return going(backend)


_COLUMNS = [
    each._replace(of_backend=_state) if each.title == "BACKENDS" else each for each in COLUMNS
]


def _sample(
    asking: ShortAnswers[Sequence[str], PortForm], interval: float, namespace: str
) -> list[ServiceRate]:
    reader = _Reader()
    asking.ask(_commands(reader, interval, namespace))
    for form in asking.known.values():
        reader.rates.add_form(form)
    return reader.rates.services()


class _Reader:
    """Adds up the rates as answers arrive, and keeps only the digests."""

    def __init__(self) -> None:
        self.rates = RatesOfCluster()
        self._added = set[RemoteAgent]()

    def short(self, agent: RemoteAgent, content: Any) -> Sequence[str]:
        """The digests. A node's rates count once, even if it is asked again."""
        found = read_short(content)
        if agent not in self._added:
            self._added.add(agent)
            self.rates.add(found.ports)
        return found.digests

    def whole(
        self, agent: RemoteAgent, content: Any
    ) -> tuple[Sequence[str], Mapping[str, PortForm]]:
        """The digests, and the form of each."""
        services = list(map(service_rate, content["services"]))
        forms = {form.digest: form for form in map(PortForm.of, services)}
        return self.short(agent, short(content["seconds"], services)), forms


def _commands(
    reader: _Reader, interval: float, namespace: str
) -> ShortAndWhole[Sequence[str], PortForm]:
    options = [f"--interval={interval:g}", *([f"--namespace={namespace}"] if namespace else [])]
    return ShortAndWhole(
        short=("ebpflb", "top", "--short", *options),
        whole=("ebpflb", "top", "--once", "-o", "json", *options),
        read_short=reader.short,
        read_whole=reader.whole,
    )


def service_rate(plain: Mapping[str, Any]) -> ServiceRate:
    """From the output of `ebpflb top -o json`."""
    known = {name: plain[name] for name in _FIELDS}
    # Fails here if the values cannot be added up.
    sum(plain[name] for name in SUMS)
    known["troubles"] = tuple(map(str, plain["troubles"]))
    known["backends"] = tuple(map(_backend, plain["backends"]))
    return ServiceRate(**known)


def _backend(plain: Mapping[str, Any]) -> BackendRate:
    sum(_backend_sums(plain))
    return BackendRate(*_backend_fields(plain))
