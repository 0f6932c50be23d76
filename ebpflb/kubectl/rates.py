# SPDX-License-Identifier: Apache-2.0
"""What each Service carries, summed over all nodes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any

from ebpflb.model.compact import by_form
from ebpflb.model.compact.rates import (
    BACKEND_SUMS,
    SUMS,
    THOUSANDTHS,
    BackendState,
    PortForm,
    PortName,
    PortRow,
    SocketText,
    form_decoder,
    rates_decoder,
)
from ebpflb.model.flow import BackendRate, ServiceRate, removed_trouble, spread

_NOTHING: Sequence[int] = (0,) * len(BACKEND_SUMS)


class RatesOfCluster:
    """Sums over the nodes, by Service port."""

    def __init__(self) -> None:
        self._asked = 0
        self._forms: dict[bytes, _FormSums] = {}

    def read(self, content: bytes) -> "list[tuple[_FormSums, PortRow]]":
        """Decode and check one node's answer, for add(). ValueError or DecodeError."""
        rows = rates_decoder.decode(content)
        found = by_form(rows, self._forms, lambda form: _FormSums(form_decoder.decode(form)))
        for sums, row in found:
            sums.check(row)
        return found

    def add(self, node: "list[tuple[_FormSums, PortRow]]") -> None:
        self._asked += 1
        for sums, row in node:
            sums.add(row)

    def services(self) -> list[ServiceRate]:
        ports = defaultdict[PortName, list[_FormSums]](list)
        for each in self._forms.values():
            if each.nodes:
                ports[each.form.name].append(each)
        return [_merged(name, found, self._asked) for name, found in ports.items()]


@dataclass(slots=True)
class _FormSums:
    """Sums over the nodes with a form. far: how many of the `based` connections go to other nodes.

    numbers, backends, more: as in PortRow.
    """

    form: PortForm
    nodes: int = 0
    numbers: Sequence[int] = (0,) * len(SUMS)
    backends: Sequence[int] = ()
    far: float = 0.0
    based: float = 0.0
    troubles: Counter[str] = field(default_factory=Counter)
    more: dict[SocketText, tuple[Sequence[int], BackendState]] = field(default_factory=dict)

    def check(self, row: PortRow) -> None:
        """ValueError if there are numbers for more or fewer backends."""
        if row.backends and len(row.backends) != len(self.form.backends) * len(BACKEND_SUMS):
            raise ValueError("numbers for more or fewer backends than there are")

    def add(self, row: PortRow) -> None:
        self.nodes += 1
        if row.numbers:
            self.numbers = list(map(add, self.numbers, row.numbers))
        if row.backends:
            known = self.backends
            self.backends = list(map(add, known, row.backends)) if known else row.backends
        if row.far is not None:
            connections = sum((row.backends or ())[:: len(BACKEND_SUMS)])
            connections += sum(each.numbers[0] for each in row.more)
            base = connections or (row.numbers[1] if row.numbers else 0)
            self.based += base
            self.far += base * row.far
        if row.troubles:
            self.troubles.update(row.troubles)
        for place, numbers, state in row.more:
            sums, seen = self.more.get(place, (_NOTHING, state))
            self.more[place] = list(map(add, sums, numbers)), _as_both_see(seen, state)

    def carried(self, row: PortRow) -> Iterator[tuple[SocketText, Sequence[int]]]:
        """BACKEND_SUMS of one node's backends. Those of which it says nothing are left out."""
        width = len(BACKEND_SUMS)
        if row.backends:
            for at, each in enumerate(self.form.backends):
                yield each.place, row.backends[at * width : (at + 1) * width]
        for own in row.more:
            yield own.place, own.numbers

    def rows(self) -> Iterator[tuple[SocketText, Sequence[int], BackendState]]:
        """Those of the form, and those with a state of their own, which may be the same."""
        width = len(BACKEND_SUMS)
        for at, (place, terminating, ejection) in enumerate(self.form.backends):
            numbers = self.backends[at * width : (at + 1) * width] or _NOTHING
            yield place, numbers, BackendState(terminating=terminating, ejection=ejection)
        for place, (sums, state) in self.more.items():
            yield place, sums, state


def _rates(names: Sequence[str], sums: Iterable[int]) -> dict[str, Any]:
    """By name; the active connections are no rate."""
    rates = {name: each / THOUSANDTHS for name, each in zip(names, sums, strict=True)}
    return rates | {"active": round(rates["active"])}


def _merged(name: PortName, found: Sequence[_FormSums], asked: int) -> ServiceRate:
    """`asked`: how many nodes answered."""
    backends, balance, _ = spread(list(_backends(found)))
    based = sum(each.based for each in found)
    sums = map(sum, zip(*(each.numbers for each in found), strict=True))
    troubles = sum((each.troubles for each in found), Counter[str]())
    return ServiceRate(
        *name,
        **_rates(SUMS, sums),
        endpoints=sum(each.offered for each in backends),
        largest_share=balance.largest,
        even_share=balance.even,
        cross_node_share=sum(each.far for each in found) / based if based else None,
        troubles=(*removed_trouble(backends), *_troubles(troubles, asked)),
        backends=backends,
    )


def _backends(found: Iterable[_FormSums]) -> Iterator[BackendRate]:
    """All backends, with no shares yet."""
    every: dict[SocketText, tuple[Sequence[int], BackendState]] = {}
    for each in found:
        for place, sums, state in each.rows():
            before, seen = every.get(place, (_NOTHING, state))
            every[place] = list(map(add, before, sums)), _as_both_see(seen, state)
    for place, (sums, state) in sorted(every.items()):
        known = _rates(BACKEND_SUMS, sums) | state._asdict() | {"ejection": state.ejection.word}
        yield BackendRate(*place, **known, share=None)


def _troubles(found: Counter[str], asked: int) -> Iterator[str]:
    for trouble, nodes in found.most_common():
        some = "" if nodes == asked else f" ({nodes} node{'s' * (nodes != 1)})"
        yield f"{trouble}{some}"


def _as_both_see(one: BackendState, other: BackendState) -> BackendState:
    """The combined state of a backend that two nodes report."""
    if one == other:
        return one
    return BackendState(
        local=one.local or other.local,
        terminating=one.terminating or other.terminating,
        offered=one.offered or other.offered,
        ejection=max(one.ejection, other.ejection),
        trouble=one.trouble or other.trouble,
        removed=one.removed and other.removed,
        pod=one.pod or other.pod,
    )
