# SPDX-License-Identifier: Apache-2.0
"""What the page shows: the edges that pass its filters, grouped, and the smaller ones as others."""

from typing import Any

from ebpflb.kubectl.ui.active import UNKNOWN_YET, ActiveNow
from ebpflb.kubectl.ui.edges import HIDDEN, Edge
from ebpflb.kubectl.ui.grouping import THE_REST, Shown, Trio, sums_of, trio_of, zones_of
from ebpflb.kubectl.ui.query import ViewQuery
from ebpflb.kubectl.ui.tally import Tally, total
from ebpflb.kubectl.ui.traffic import EdgeTraffic, KeptFlow

_MOST_CHOICES = 1000
_MOST_FLOWS = 100
# Columns are sorted in this order, top to bottom, after what has problems.
_ORDER = {"cluster": 1, HIDDEN: 1, "outside": 2, "nobody": 3}
_COLUMNS = {"client": 0, "service": 1, "target": 2}


class View:
    """The traffic at one moment, as selected by one query."""

    def __init__(
        self, traffic: EdgeTraffic, query: ViewQuery, active: ActiveNow = UNKNOWN_YET
    ) -> None:
        self._traffic = traffic
        self._query = query
        self._active = active
        self._reading = traffic.read(query.window)
        self._zones = zones_of(self._reading.tallies)
        self._tallies = {
            edge: tally for edge, tally in self._reading.tallies.items() if query.passes(edge)
        }
        self._grouped: dict[Trio, Tally] = {}
        for edge, tally in self._tallies.items():
            self._grouped.setdefault(self._trio(edge), Tally()).add(tally)
        self._shown = Shown.of(self._grouped)
        self._drawn: dict[Trio, Tally] = {}
        for trio, tally in self._grouped.items():
            self._drawn.setdefault(self._shown.trio(trio), Tally()).add(tally)

    def map_and_table(self) -> dict[str, Any]:
        """Everything but the details of the open line."""
        return {
            **self._times(),
            "active": self._active.passing(self._query.namespace, self._query.service),
            "active_why": self._active.why,
            "seen": total(self._reading.tallies.values()).connections,
            "total": total(self._tallies.values()).plain(),
            "history": self._traffic.history(self._query.passes),
            "columns": [self._column(at) for at in range(3)],
            "links": self._links(),
            **self._rows(),
            "choices": self._choices(),
        }

    def open_line(self) -> dict[str, Any]:
        """The sums and the latest flows of the line that the query names."""

        def has_flow(each: KeptFlow) -> bool:
            return self._is_open(each.edge)

        tallies = (tally for edge, tally in self._tallies.items() if self._is_open(edge))
        return {
            **self._times(),
            "active": self._active.of(self._query.via),
            "active_why": self._active.why,
            "total": total(tallies).plain(),
            "history": self._traffic.history(self._is_open),
            "flows": [
                {"number": each.number, "flow": each.flow}
                for each in self._traffic.latest(has_flow, _MOST_FLOWS)
            ],
        }

    def _times(self) -> dict[str, float]:
        begin, end = self._reading.begin, self._reading.end
        return {"begin": begin, "end": end, "seconds": self._reading.seconds}

    def _trio(self, edge: Edge) -> Trio:
        return trio_of(edge, self._query.group, self._zones)

    def _is_open(self, edge: Edge) -> bool:
        """The page names a group by its id, or the rest that it belongs to."""
        trio = self._trio(edge)
        wanted = (self._query.client, self._query.via, self._query.target)
        return self._query.passes(edge) and all(
            id_ in ("", group.id, shown.id)
            for id_, group, shown in zip(wanted, trio, self._shown.trio(trio), strict=True)
        )

    def _column(self, at: int) -> list[dict[str, Any]]:
        sums = {key[0]: tally for key, tally in sums_of(self._drawn, (at,)).items()}
        hidden = {trio[at] for trio in self._grouped} - self._shown.columns[at]
        ordered = sorted(
            sums,
            key=lambda group: (
                group == THE_REST,
                not sums[group].problems,
                _ORDER.get(group.kind, 0),
                group.name,
            ),
        )
        return [
            {
                "id": group.id,
                "kind": group.kind,
                "name": group.name,
                "hidden": len(hidden - {THE_REST}) if group == THE_REST else 0,
                "active": self._active.of(group.id) if at == _COLUMNS["service"] else None,
                **sums[group].plain(),
            }
            for group in ordered
        ]

    def _links(self) -> list[dict[str, Any]]:
        return [
            {"column": at, "from": ends[0].id, "to": ends[1].id, **tally.plain()}
            for at in (0, 1)
            for ends, tally in sums_of(self._drawn, (at, at + 1)).items()
        ]

    def _rows(self) -> dict[str, Any]:
        trios = sorted(self._grouped, key=self._rank)
        first, rest = trios[: self._query.rows], trios[self._query.rows :]
        return {
            "rows": [self._row(trio) for trio in first],
            "rest": {
                "rows": len(rest),
                **total(self._grouped[trio] for trio in rest).plain(),
            },
        }

    def _row(self, trio: Trio) -> dict[str, Any]:
        client, service, target = (
            {"id": group.id, "kind": group.kind, "name": group.name} for group in trio
        )
        return {
            "client": client,
            "service": service,
            "target": target,
            "active": self._active.of(service["id"]),
            **self._grouped[trio].plain(),
        }

    def _rank(self, trio: Trio) -> tuple[Any, ...]:
        tally, by = self._grouped[trio], self._query.sort
        if by in _COLUMNS:
            return trio[_COLUMNS[by]].name, trio
        largest = {
            "problems": (tally.problems, tally.connections),
            "connections": (tally.connections,),
            "sent": (tally.sent,),
            "received": (tally.received,),
        }
        return *(-number for number in largest[by]), trio

    def _choices(self) -> dict[str, list[str]]:
        """The choices for the filters."""
        edges = self._reading.tallies
        namespaces = {name for edge in edges for name in (edge.namespace, edge.client.namespace)}
        services = {edge.service for edge in edges if edge.namespace}
        return {
            "namespaces": sorted(filter(None, namespaces))[:_MOST_CHOICES],
            "services": sorted(services)[:_MOST_CHOICES],
        }
