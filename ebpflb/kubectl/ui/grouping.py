# SPDX-License-Identifier: Apache-2.0
"""The three columns of an edge, grouped as the page asks, and limited to what fits."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ebpflb.kubectl.ui.edges import HIDDEN, OTHERS, Edge, Party
from ebpflb.kubectl.ui.tally import Tally

# Per column. Groups without a target should be few; a bad agent could invent more.
_MOST_GROUPS, _MOST_WITHOUT_TARGET = 14, 6
_NOBODY = "nobody"

Zones = Mapping[str, str]


class Group(NamedTuple):
    """What edges share in one column. kind: that of Party, or the field they are grouped by."""

    kind: str
    name: str

    @property
    def id(self) -> str:
        """The page's name for it."""
        return f"{self.kind}:{self.name}"


Trio = tuple[Group, Group, Group]
THE_REST = Group(OTHERS, OTHERS)
_OUTSIDE = Group("outside", "outside")


def zones_of(edges: Iterable[Edge]) -> Zones:
    """Nodes -> zones, learned from flows' backends, the only field with a zone."""
    return {
        edge.target.node: edge.target.zone
        for edge in edges
        if edge.target.node and edge.target.zone
    }


def trio_of(edge: Edge, by: str, zones: Zones) -> Trio:
    """Client, Service, and the target of the connection."""
    return _client(edge, by, zones), _service(edge, by), _group(edge.target, by, zones)


def _client(edge: Edge, by: str, zones: Zones) -> Group:
    """By node, clients outside belong to the node that they enter by."""
    found = _group(edge.client, by, zones)
    is_split = found == _OUTSIDE and by == "node"
    return Group(found.kind, f"{found.name} → {edge.node}") if is_split else found


def _service(edge: Edge, by: str) -> Group:
    if edge.service == OTHERS:
        return THE_REST
    if by == "namespace":
        return Group(by, edge.namespace or "no Service")
    return Group("service", edge.service)


def _group(party: Party, by: str, zones: Zones) -> Group:
    if party.kind in (_NOBODY, OTHERS) or by == "pod":
        return Group(party.kind, party.name)
    if party.kind == "outside":
        return _OUTSIDE
    if by == "node":
        return Group(by, party.node or "unknown node")
    if by == "zone":
        return Group(by, party.zone or zones.get(party.node, "unknown zone"))
    if party.kind != "pod":
        is_unknown = by == "namespace" and party.kind != HIDDEN
        return Group(party.kind, "no pod known" if is_unknown else party.name)
    return Group(
        by, party.namespace if by == "namespace" else f"{party.namespace}/{party.workload}"
    )


class Shown(NamedTuple):
    """The groups of each column that are shown individually."""

    columns: tuple[frozenset[Group], ...]

    @classmethod
    def of(cls, grouped: Mapping[Trio, Tally]) -> "Shown":
        return cls(tuple(frozenset(_chosen(sums_of(grouped, (at,)))) for at in range(3)))

    def trio(self, trio: Trio) -> Trio:
        """The same, with THE_REST for groups that are not shown."""
        client, service, target = (
            group if group in shown else THE_REST
            for group, shown in zip(trio, self.columns, strict=True)
        )
        return client, service, target


def sums_of(
    grouped: Mapping[Trio, Tally], columns: tuple[int, ...]
) -> dict[tuple[Group, ...], Tally]:
    """Add up tallies that agree in some of the columns."""
    sums: dict[tuple[Group, ...], Tally] = {}
    for trio, tally in grouped.items():
        sums.setdefault(tuple(trio[at] for at in columns), Tally()).add(tally)
    return sums


def _chosen(sums: Mapping[tuple[Group, ...], Tally]) -> Iterable[Group]:
    """Those with the most problems, which may have few connections, and then the largest."""
    groups = {key[0]: tally for key, tally in sums.items() if key[0] != THE_REST}
    without = [group for group in groups if group.kind == _NOBODY]
    others = groups.keys() - without
    yield from sorted(without, key=lambda group: (-groups[group].problems, group))[
        :_MOST_WITHOUT_TARGET
    ]
    yield from sorted(
        others,
        key=lambda group: (-groups[group].problems, -groups[group].connections, group),
    )[:_MOST_GROUPS]
