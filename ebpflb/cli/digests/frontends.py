# SPDX-License-Identifier: Apache-2.0
"""The short answer of `ebpflb services`: a digest and the counters of each frontend."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple

from ebpflb.cli.digests import digest
from ebpflb.config.values import socket_address
from ebpflb.words.connections import DROPPED, FAILED, REFUSED

SERVED = "served"
COUNTS = ("connections", FAILED, REFUSED, DROPPED)
# The same on all nodes, unless one is behind.
_SETTINGS = (
    *("internal_policy", "external_policy", "affinity_timeout", "scheduler", "dsr"),
    "source_ranges",
)

Setting = str | int | tuple[str, ...] | None


class FrontendName(NamedTuple):
    """Identifies a frontend; lists are sorted by these fields."""

    namespace: str
    service: str
    port_name: str
    type: str
    protocol: str
    address: str
    port: int


class FrontendForm(NamedTuple):
    """The part of a frontend that should be the same on all nodes.

    backends: for clients on the node; empty with internal policy Local, where nodes differ.
    """

    settings: tuple[tuple[str, Setting], ...]
    backends: frozenset[str]


class CountsOfNode(NamedTuple):
    """A frontend's counters on one node, and the backends there that are not in its form.

    outside: what happens there to clients from outside under external policy Local: SERVED, or what
    is done without an endpoint on the node. Empty under policy Cluster.
    """

    connections: int
    failed: int
    refused: int
    dropped: int
    backends: tuple[str, ...] = ()
    outside: str = ""


@dataclass(frozen=True, slots=True)
class FrontendOfNode:
    name: FrontendName
    form: FrontendForm
    counts: CountsOfNode

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> "FrontendOfNode":
        """From the output of `ebpflb services -o json`."""
        kinds = str, str, str, str, str, str, int
        values = (plain[name] for name in FrontendName._fields)
        name = FrontendName(*(kind(value) for kind, value in zip(kinds, values, strict=True)))
        local = _addresses(plain["local"]["backends"])
        # Usually they are the same, and there may be very many.
        same = plain["local"] == plain["others"]
        every = local if same else local | _addresses(plain["others"]["backends"])
        differs = name.type == "ClusterIP" and plain["internal_policy"] == "Local"
        settings = tuple((key, _setting(plain[key])) for key in _SETTINGS)
        form = FrontendForm(settings, frozenset() if differs else local)
        connections, failed, refused, dropped = (int(plain[key]) for key in COUNTS)
        more = tuple(sorted(every - form.backends))
        outside = _outside(name, plain)
        counts = CountsOfNode(connections, failed, refused, dropped, more, outside)
        return cls(name, form, counts)

    @property
    def digest(self) -> str:
        """The same on all nodes whose frontend has this form."""
        return digest(self.name, self.form.settings, sorted(self.form.backends))


def _setting(value: object) -> Setting:
    """As the agent has answered, but hashable, whatever that is."""
    if value is None or isinstance(value, str | int):
        return value
    return tuple(map(str, value)) if isinstance(value, list) else str(value)


def _outside(name: FrontendName, plain: Mapping[str, Any]) -> str:
    if name.type == "ClusterIP" or plain["external_policy"] != "Local":
        return ""
    return SERVED if plain["others"]["backends"] else str(plain["others"]["if_empty"])


def _addresses(backends: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(socket_address(str(each["address"]), int(each["port"])) for each in backends)


def short(frontends: Iterable[FrontendOfNode]) -> dict[str, list[Any] | int]:
    """Digest -> COUNTS, and, if any, the rest of CountsOfNode.

    0 instead of the list if there is nothing to report.
    """
    return {each.digest: _short(each.counts) for each in frontends}


def _short(counts: CountsOfNode) -> list[Any] | int:
    *numbers, backends, outside = counts
    if outside:
        return [*numbers, backends, outside]
    if backends:
        return [*numbers, backends]
    return numbers if any(numbers) else 0


def read_short(content: Mapping[str, Any]) -> dict[str, CountsOfNode | None]:
    """The counters by digest; None if there is nothing to report."""
    return {intern(key): _counts(each) if each else None for key, each in content.items()}


def _counts(values: Sequence[Any]) -> CountsOfNode:
    numbers, rest = map(int, values[: len(COUNTS)]), values[len(COUNTS) :]
    connections, failed, refused, dropped = numbers
    backends, outside = [*rest, *((), "")[len(rest) :]][:2]
    more = tuple(map(str, backends))
    return CountsOfNode(connections, failed, refused, dropped, more, str(outside))
