# SPDX-License-Identifier: Apache-2.0
"""What each Service carries, summed over all nodes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Any

from ebpflb.cli.digests.rates import (
    BACKEND_SUMS,
    SUMS,
    BackendState,
    Place,
    PortForm,
    PortName,
    PortRates,
    split,
)
from ebpflb.model.ejection import STANDINGS
from ebpflb.model.flow import BackendRate, Balance, ServiceRate, balance, removed_trouble

_USUAL = BackendState()


class RatesOfCluster:
    """Sums over the nodes, by Service port. asked: how many nodes were added."""

    def __init__(self) -> None:
        self.asked = 0
        self._ports = defaultdict[PortName, _Sums](_Sums)

    def add(self, ports: Iterable[PortRates]) -> None:
        """Add what one node reports."""
        self.asked += 1
        for each in ports:
            self._ports[each.name].add(each)

    def add_form(self, form: PortForm) -> None:
        """Add the backends of a form, which some nodes have but carry nothing for."""
        self._ports[form.name].add_form(form)

    def services(self) -> list[ServiceRate]:
        return [sums.merged(name, self.asked) for name, sums in self._ports.items()]


@dataclass(slots=True)
class _Sums:
    """Sums of one Service port. far: how many of the `based` connections go to other nodes.

    columns: by the `places` text that nodes send, which is mostly the same. usual: texts whose
    places all have the usual state.
    """

    numbers: Sequence[float] = (0,) * len(SUMS)
    far: float = 0.0
    based: float = 0.0
    troubles: Counter[str] = field(default_factory=Counter)
    columns: dict[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    usual: set[str] = field(default_factory=set)
    states: dict[Place, BackendState] = field(default_factory=dict)

    def add(self, port: PortRates) -> None:
        self.numbers = list(map(add, self.numbers, port.numbers))
        if port.troubles:
            self.troubles.update(port.troubles)
        if port.far is not None:
            base = (sum(port.columns[0]) if port.places else 0) or port.numbers[1]
            self.based += base
            self.far += base * port.far
        known = self.columns.get(port.places)
        self.columns[port.places] = _added(known, port.columns) if known else port.columns
        if port.states:
            for place in split(port.places):
                self._add_state(place, port.states.get(place, _USUAL))
        else:
            self.usual.add(port.places)

    def add_form(self, form: PortForm) -> None:
        for address, port, terminating, standing in form.backends:
            state = BackendState(terminating=terminating, standing=standing)
            self._add_state((address, port), state)

    def _add_state(self, place: Place, state: BackendState) -> None:
        known = self.states.get(place)
        self.states[place] = _as_both_see(known, state) if known else state

    def merged(self, name: PortName, asked: int) -> ServiceRate:
        """`asked`: how many nodes answered."""
        families = defaultdict[bool, list[BackendRate]](list)
        for each in self._backends():
            families[":" in each.address].append(each)
        groups = [_Family.of(each) for each in families.values()]
        busiest = max(groups, key=lambda group: group.every, default=_Family.of([]))
        backends = tuple(each for group in groups for each in group.backends)
        numbers: dict[str, Any] = dict(zip(SUMS, self.numbers, strict=True))
        return ServiceRate(
            *name,
            **numbers,
            endpoints=sum(each.offered for each in backends),
            largest_share=busiest.balance.largest,
            even_share=busiest.balance.even,
            cross_node_share=self.far / self.based if self.based else None,
            troubles=(*removed_trouble(backends), *self._troubles(asked)),
            backends=backends,
        )

    def _backends(self) -> Iterator[BackendRate]:
        """All backends, with no shares yet."""
        for place in (each for places in self.usual for each in split(places)):
            self._add_state(place, _USUAL)
        sums = {place: [0.0] * len(BACKEND_SUMS) for place in self.states}
        for places, columns in self.columns.items():
            for place, numbers in zip(split(places), zip(*columns, strict=True), strict=True):
                sums[place] = list(map(add, sums[place], numbers))
        for place, added in sorted(sums.items()):
            known: dict[str, Any] = dict(zip(BACKEND_SUMS, added, strict=True))
            known |= self.states[place]._asdict()
            known |= zip(("address", "port"), place, strict=True)
            yield BackendRate(**known, share=None)

    def _troubles(self, asked: int) -> Iterator[str]:
        for trouble, nodes in self.troubles.most_common():
            some = "" if nodes == asked else f" ({nodes} node{'s' * (nodes != 1)})"
            yield f"{trouble}{some}"


def _added(
    one: Sequence[Sequence[float]], other: Sequence[Sequence[float]]
) -> Sequence[Sequence[float]]:
    return [list(map(add, *both)) for both in zip(one, other, strict=True)]


def _as_both_see(one: BackendState, other: BackendState) -> BackendState:
    """The combined state of a backend that two nodes report."""
    if one == other:
        return one
    return BackendState(
        local=one.local or other.local,
        terminating=one.terminating or other.terminating,
        offered=one.offered or other.offered,
        standing=max(one.standing, other.standing, key=STANDINGS.index),
        trouble=one.trouble or other.trouble,
        removed=one.removed and other.removed,
        pod=one.pod or other.pod,
    )


@dataclass(frozen=True, slots=True)
class _Family:
    """The backends of one address family, with their shares. every: connections to all of them."""

    backends: list[BackendRate]
    every: float
    balance: Balance

    @classmethod
    def of(cls, backends: list[BackendRate]) -> "_Family":
        new = [each.connections for each in backends]
        counts = new if any(new) else [float(each.active) for each in backends]
        every = sum(counts)
        shared = [
            replace(each, share=count / every if every else None)
            for each, count in zip(backends, counts, strict=True)
        ]
        return cls(shared, every, balance(counts, sum(each.offered for each in backends)))
