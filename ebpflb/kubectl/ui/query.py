# SPDX-License-Identifier: Apache-2.0
"""The page's query, kept in its URL: filters, grouping, and the open line."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property

from ebpflb.errors import ConfigError
from ebpflb.kubectl.ui.edges import Edge
from ebpflb.kubectl.ui.traffic import SLOT_SECONDS, WINDOWS
from ebpflb.model.flow import LONGEST_NAME
from ebpflb.words.connections import VERDICTS

GROUPS = ("workload", "pod", "namespace", "node", "zone")
SORTS = ("problems", "connections", "sent", "received", "client", "service", "target")

_MOST_ROWS = 10_000
# The longest text is the id of a group: the name of a pod with its namespace and its kind.
_LONGEST = 3 * LONGEST_NAME


@dataclass(frozen=True)
class ViewQuery:
    """Which edges, and how to group them. An empty filter matches everything.

    client, via, target: the open line or row, by the ids of its groups; empty for any. until: the
    end of the window, in seconds since 1970, at the end of a slot; 0 for now.
    """

    group: str = GROUPS[0]
    window: int = WINDOWS[0]
    namespace: str = ""
    service: str = ""
    node: str = ""
    verdict: str = ""
    text: str = ""
    sort: str = SORTS[0]
    rows: int = 100
    client: str = ""
    via: str = ""
    target: str = ""
    until: int = 0

    def passes(self, edge: Edge) -> bool:
        return (
            self.verdict in ("", edge.verdict)
            and self.service in ("", edge.service)
            and self.namespace in ("", edge.namespace, edge.client.namespace)
            and self.node in ("", edge.node, edge.client.node, edge.target.node)
            and (not self._wanted or any(self._wanted in name.casefold() for name in _names(edge)))
        )

    @cached_property
    def _wanted(self) -> str:
        return self.text.strip().casefold()


def parse_query(given: Mapping[str, str]) -> ViewQuery:
    """ConfigError names the invalid parameter."""
    unknown = sorted(given.keys() - ViewQuery.__dataclass_fields__.keys())
    if unknown:
        raise ConfigError(f"unknown parameter {unknown[0][:40]!r}")
    too_long = [name for name, text in given.items() if len(text) > _LONGEST]
    if too_long:
        raise ConfigError(f"{too_long[0]}: longer than {_LONGEST} characters")
    _one_of(given, "group", GROUPS)
    _one_of(given, "window", [str(each) for each in WINDOWS])
    _one_of(given, "verdict", ("", *VERDICTS))
    _one_of(given, "sort", SORTS)
    numbers = {name: _number(given, name) for name in ("window", "rows") if name in given}
    if "until" in given:
        numbers["until"] = _moment(given["until"]) if given["until"] else 0
    texts = {name: text for name, text in given.items() if name not in numbers}
    return ViewQuery(**texts, **numbers)  # type: ignore[arg-type]


def _one_of(given: Mapping[str, str], name: str, allowed: Collection[str]) -> None:
    if name in given and given[name] not in allowed:
        raise ConfigError(
            f"{name}: {given[name][:40]!r} is not one of {', '.join(filter(None, allowed))}"
        )


def _number(given: Mapping[str, str], name: str) -> int:
    text = given[name]
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _MOST_ROWS):
        raise ConfigError(f"{name}: {text[:40]!r} is not a number from 1 to {_MOST_ROWS}")
    return int(text)


def _moment(text: str) -> int:
    """The last end of a slot by then."""
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo:
            return int(moment.timestamp()) // SLOT_SECONDS * SLOT_SECONDS
    except (ValueError, OverflowError):
        pass
    raise ConfigError(f"until: {text[:40]!r} is not a time with its zone, as 2026-11-29T03:10:00Z")


def _names(edge: Edge) -> Iterator[str]:
    yield from (edge.service, edge.node, edge.verdict)
    for party in (edge.client, edge.target):
        yield from (party.name, party.node, party.zone)
