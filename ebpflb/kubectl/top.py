# SPDX-License-Identifier: Apache-2.0
"""kubectl ebpflb top: what each Service carries on all nodes together, and which are in trouble."""

from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import partial
from typing import Any

import click
from msgspec.json import Decoder, encode

from ebpflb.cli.options import chosen, list_options, watch_option
from ebpflb.cli.tables.past import PastWindow, past_options, past_window, show_past
from ebpflb.cli.tables.top import COLUMNS, chosen_by, going, ordered, sample_options, top_lines
from ebpflb.config.moment import span
from ebpflb.kubectl.asking import AgentQuestion, AskedAgents
from ebpflb.kubectl.cluster import Cluster, cluster_command
from ebpflb.kubectl.rates import RatesOfCluster
from ebpflb.kubectl.relay import RelayQuestion
from ebpflb.kubectl.zones.known import known_zones
from ebpflb.kubectl.zones.table import check_options, zone_lines, zone_options
from ebpflb.kubectl.zones.traffic import ZoneTraffic, between_zones
from ebpflb.model.compact.past_rates import (
    PastRates,
    RecordedTime,
    decode_past,
    of_records,
    together,
)
from ebpflb.model.compact.rates import port_row
from ebpflb.model.flow import BackendRate, ServiceRate
from ebpflb.words.observe import RATES

_MOST = 1 << 63
# A quotient of sums may come out a little above 1.
_MOST_SHARE = 1.01
_items_decoder = Decoder(list[ServiceRate])
_past_decoder = Decoder(list[PastRates])


@click.command(
    epilog="""\b
`ebpflb top --help` describes the columns; numbers are sums over all nodes. A trouble that only
some nodes see is followed by their number. Idle Services are only shown with --all or --service.

\b
--by zone shows what clients in one zone exchange with backends in another, or in the same, most
bytes first, and what crosses zones. Clients, also those outside, count for the node at which they
enter. --price says what that costs at this rate: a number is the price of each GB that crosses
zones, in either direction; a file has lines such as `zone-a zone-b 0.02`, each for both ways.
It asks the nodes by pods/exec, never the relay, and lists nodes and EndpointSlices.

\b
Examples:
  kubectl ebpflb top -A
  kubectl ebpflb top -n shop --sort failures --backends
  kubectl ebpflb top -n shop --service web --backends
  kubectl ebpflb top -A --watch
  kubectl ebpflb top -A --by zone --price 0.02 --interval 15
  kubectl ebpflb top -A --at 03:10 --window 5m --sort failures
  kubectl ebpflb top -A -o jsonl | jq 'select(.troubles != [])'
"""
)
@watch_option
@past_options
@sample_options
@zone_options
@list_options
@cluster_command
def top(cluster: Cluster, watch: bool, **given: Any) -> None:
    """Show traffic per Service on all nodes, and what is in trouble."""
    check_options(given)
    namespace, wanted = chosen(given, cluster.namespace)
    if window := past_window(given):
        if watch:
            raise click.UsageError("--watch does not work with --at")
        past = carried_in(cluster, window, namespace)
        show_past(past, wanted, given, given["output"], COLUMNS_OF_NODES)
        return
    check_interval(cluster, given["interval"])
    if given["by"]:
        _show_zones(cluster, namespace, wanted, given, watch=watch)
        return
    output, every = given["output"], given["every"] or bool(wanted)

    def sample() -> list[ServiceRate]:
        found = chosen_by(wanted, carried(cluster, given["interval"], namespace))
        return ordered(found, given["sort"])

    lines = partial(
        top_lines,
        backends=given["backends"],
        every=every,
        is_wide=output == "wide",
        columns=COLUMNS_OF_NODES,
    )
    cluster.show(sample, lines, output, watch=watch, pause_seconds=0)


def _show_zones(
    cluster: Cluster, namespace: str, wanted: str, given: Mapping[str, Any], *, watch: bool
) -> None:
    question, price_of = _question(given["interval"], namespace), given["price"]

    def sample() -> list[ZoneTraffic]:
        cluster.find()
        zones = known_zones(cluster.access, namespace)
        return between_zones(cluster, question, wanted, zones, price_of or (lambda _: None))

    lines = partial(zone_lines, has_prices=price_of is not None)
    cluster.show(sample, lines, given["output"], watch=watch, pause_seconds=0)


def _state(backend: BackendRate) -> str:
    """Without `local` and `remote`, which differ between nodes."""
    if backend.is_left_out:
        return backend.ejection
    if backend.offered:
        return "terminating" if backend.terminating else ""
    return going(backend)


COLUMNS_OF_NODES = [
    each._replace(part=_state) if each.title == "BACKENDS" else each for each in COLUMNS
]
"""The columns of `ebpflb top`, of several nodes together."""


def check_interval(cluster: Cluster, interval: float) -> None:
    """Raise UsageError if a node could not answer within a sample of so many seconds."""
    if interval >= cluster.access.seconds:
        raise click.UsageError("--timeout must be longer than --interval")


def carried(cluster: Cluster, interval: float, namespace: str) -> list[ServiceRate]:
    """As sampled(), of the relay, if it answers. ConfigError, ClusterError."""
    return cluster.asked(
        RelayQuestion(RATES, namespace, {"interval": f"{interval:g}"}),
        rates_of,
        lambda: sampled(cluster, interval, namespace),
    )


def carried_in(cluster: Cluster, window: PastWindow, namespace: str) -> PastRates:
    """As recorded(), of the relay, if it answers. ConfigError, ClusterError."""
    return cluster.asked(
        RelayQuestion(RATES, namespace, window.parameters),
        _past_of,
        lambda: recorded(cluster, window, namespace),
    )


def _past_of(items: bytes) -> PastRates:
    (found,) = _past_decoder.decode(items)
    _check_all(found.services)
    return found


def rates_of(items: bytes) -> list[ServiceRate]:
    """From JSON. ValueError or DecodeError, also for numbers that no cluster has."""
    found = _items_decoder.decode(items)
    _check_all(found)
    return found


def _check_all(services: Iterable[ServiceRate]) -> None:
    for service in services:
        _check(service)
        for backend in service.backends:
            _check(backend)


def _check(rate: ServiceRate | BackendRate) -> None:
    for field in fields(rate):
        value, most = getattr(rate, field.name), _MOST_SHARE if "share" in field.name else _MOST
        if isinstance(value, int | float) and not 0 <= value <= most:
            raise ValueError(f"{field.name} {value:.3g}")


def sampled(cluster: AskedAgents, interval: float, namespace: str) -> list[ServiceRate]:
    """What the Services of a namespace, or all, carry on all nodes. `interval`: seconds."""
    rates = RatesOfCluster()
    for _, found in cluster.ask_compact(_question(interval, namespace), rates.read):
        rates.add(found)
    return rates.services()


def _question(interval: float, namespace: str) -> AgentQuestion:
    return AgentQuestion("top", {"interval": f"{interval:g}", "namespace": namespace})


def recorded(cluster: AskedAgents, window: PastWindow, namespace: str) -> PastRates:
    """What the Services of a namespace, or all, carried on all nodes, by their flow records."""
    question = AgentQuestion("top", {**window.parameters, "namespace": namespace})
    rates = RatesOfCluster()
    records = []
    for _, (known, found) in cluster.ask_compact(question, partial(_read_past, rates)):
        rates.add(found)
        records.append(known)
    every = together(*span(*window), records)
    return PastRates(every, list(map(of_records, rates.services())))


def _read_past(rates: RatesOfCluster, content: bytes) -> tuple[RecordedTime, Any]:
    """A pod's own node has no records of its clients on others: each node tells all names."""
    past = decode_past(content)
    _check_all(past.services)
    rows = [port_row(each, has_names=True) for each in past.services]
    return past.records, rates.read(encode(rows))
