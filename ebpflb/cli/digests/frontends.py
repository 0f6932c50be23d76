# SPDX-License-Identifier: Apache-2.0
"""The short answer of `ebpflb services`: a digest and the counters of each frontend."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from sys import intern
from typing import Any, NamedTuple

from ebpflb.cli.digests import digest
from ebpflb.config.values import socket_address
from ebpflb.model.flow import DROPPED, FAILED, REFUSED

COUNTS = ("connections", FAILED, REFUSED, DROPPED)
# The same on all nodes, unless one is behind.
_SETTINGS = (
    *("internal_policy", "external_policy", "affinity_timeout", "scheduler", "dsr"),
    "source_ranges",
)


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

    settings: tuple[tuple[str, str], ...]
    backends: frozenset[str]


class CountsOfNode(NamedTuple):
    """A frontend's counters on one node, and the backends there that are not in its form."""

    connections: int
    failed: int
    refused: int
    dropped: int
    backends: tuple[str, ...] = ()


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
        settings = tuple((key, str(plain[key])) for key in _SETTINGS if key in plain)
        form = FrontendForm(settings, frozenset() if differs else local)
        # 0.1.0 does not print it.
        connections, failed, refused, dropped = (int({FAILED: 0, **plain}[key]) for key in COUNTS)
        more = tuple(sorted(every - form.backends))
        return cls(name, form, CountsOfNode(connections, failed, refused, dropped, more))

    @property
    def digest(self) -> str:
        """The same on all nodes whose frontend has this form."""
        return digest(self.name, self.form.settings, sorted(self.form.backends))


def _addresses(backends: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(socket_address(str(each["address"]), int(each["port"])) for each in backends)


def short(frontends: Iterable[FrontendOfNode]) -> dict[str, list[Any] | int]:
    """Digest -> COUNTS, and the backends not in the form, if any.

    0 instead of the list if there is nothing to report.
    """
    return {each.digest: _short(each.counts) for each in frontends}


def _short(counts: CountsOfNode) -> list[Any] | int:
    *numbers, backends = counts
    if backends:
        return [*numbers, backends]
    return numbers if any(numbers) else 0


def read_short(content: Mapping[str, Any]) -> dict[str, CountsOfNode | None]:
    """The counters by digest; None if there is nothing to report."""
    return {intern(key): _counts(each) if each else None for key, each in content.items()}


def _counts(values: Sequence[Any]) -> CountsOfNode:
    *numbers, backends = [*values, ()][: len(COUNTS) + 1]
    connections, failed, refused, dropped = map(int, numbers)
    return CountsOfNode(connections, failed, refused, dropped, tuple(map(str, backends)))
