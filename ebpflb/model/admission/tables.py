# SPDX-License-Identifier: Apache-2.0
"""Which Services have lookup tables or weights: those of a namespace share a budget, and so do all.

A table costs as much memory as thousands of endpoints, and time to build. Older Services come
first. Endpoints do not matter, so that all nodes agree.
"""

from collections import Counter
from typing import NamedTuple

from ebpflb.model.extensions.apportionment import MOST_TURNS
from ebpflb.model.service import Service, ServiceName
from ebpflb.words.scheduler import Scheduler

# Slots: 628 tables of the default size in all, 104 in a namespace.
MOST_TABLE_SLOTS = 6 << 20
MOST_OF_NAMESPACE = 1 << 20


def without_tables(service: Service) -> Service:
    """What a Service that gets no tables has instead."""
    return service.annotated_with(scheduler=Scheduler.RANDOM, weights=None)


class _Wish(NamedTuple):
    created: str
    service: ServiceName
    slots: int


class TableBudget:
    """`refused`: the Services that ask for tables and get none."""

    def __init__(self, default: Scheduler, size: int) -> None:
        """`default`: the scheduler of Services that set none. `size`: slots of a table."""
        self.refused: frozenset[ServiceName] = frozenset()
        self._default = default
        self._size = size
        self._wishes: dict[ServiceName, _Wish] = {}
        self._wanted: Counter[str] = Counter()
        self._has_changed = False

    def add(self, service: Service) -> None:
        slots = self._slots_of(service)
        if slots:
            self._wishes[service.name] = _Wish(service.created, service.name, slots)
            self._wanted[service.name.namespace] += slots
            self._has_changed = True

    def remove(self, name: ServiceName) -> None:
        wish = self._wishes.pop(name, None)
        if wish:
            self._wanted[name.namespace] -= wish.slots
            self._has_changed = True

    def _slots_of(self, service: Service) -> int:
        """As if every port had several endpoints, but few."""
        size = MOST_TURNS if service.annotated.weights else 0
        if (service.annotated.scheduler or self._default).has_table:
            size = self._size
        sets = (each.uses_cluster_endpoints + each.uses_local_endpoints for each in service.ports)
        return size * sum(sets)

    def take_changed(self) -> set[ServiceName]:
        """The Services that have got or lost their tables since the last call."""
        if not self._has_changed:
            return set()
        self._has_changed = False
        before, self.refused = self.refused, frozenset(self._find_refused())
        return set(before ^ self.refused)

    def _find_refused(self) -> set[ServiceName]:
        self._wanted = +self._wanted
        is_enough = self._wanted.total() <= MOST_TABLE_SLOTS
        if is_enough and all(each <= MOST_OF_NAMESPACE for each in self._wanted.values()):
            return set()
        refused, used, total = set(), Counter[str](), 0
        for wish in sorted(self._wishes.values()):
            namespace = wish.service.namespace
            if (
                used[namespace] + wish.slots > MOST_OF_NAMESPACE
                or total + wish.slots > MOST_TABLE_SLOTS
            ):
                refused.add(wish.service)
            else:
                used[namespace] += wish.slots
                total += wish.slots
        return refused
