# SPDX-License-Identifier: Apache-2.0
"""What each Service carries, summed over all nodes."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

from ebpflb.cli.compact.rates import (
    BACKEND_SUMS,
    SUMS,
    BackendAddress,
    BackendState,
    PortForm,
    PortName,
    PortRow,
    form_decoder,
    rates_decoder,
)
from ebpflb.model.flow import BackendRate, ServiceRate, removed_trouble, spread

_NOTHING: Sequence[float] = (0.0,) * len(BACKEND_SUMS)


class NodeRates(NamedTuple):
    """One node's answer. ports: the form of each of its rows."""

    seconds: float
    ports: Sequence[tuple["_FormSums", PortRow]]


class RatesOfCluster:
    """Sums over the nodes, by Service port."""

    def __init__(self) -> None:
        self._asked = 0
        self._forms: dict[bytes, _FormSums] = {}

    def read(self, content: bytes) -> NodeRates:
        """Decode and check one node's answer. ValueError or DecodeError."""
        seconds, found = rates_decoder.decode(content)
        rows = {bytes(row.form): row for row in found}
        for text in rows.keys() - self._forms.keys():
            self._forms[text] = _FormSums(form_decoder.decode(text))
        ports = [(self._forms[text], row) for text, row in rows.items()]
        for sums, row in ports:
            sums.check(row)
        return NodeRates(seconds, ports)

    def add(self, node: NodeRates) -> None:
        self._asked += 1
        for sums, row in node.ports:
            sums.add(row, node.seconds)

    def services(self) -> list[ServiceRate]:
        ports = defaultdict[PortName, list[_FormSums]](list)
        for each in self._forms.values():
            if each.nodes:
                ports[each.form.name].append(each)
        return [_merged(name, found, self._asked) for name, found in ports.items()]


@dataclass(slots=True)
class _FormSums:
    """Sums over the nodes with a form. far: how many of the `based` connections go to other nodes.

    numbers: SUMS; columns: BACKEND_SUMS of the form's backends; both, like `more`, per second.
    """

    form: PortForm
    nodes: int = 0
    numbers: Sequence[float] = (0.0,) * len(SUMS)
    columns: Sequence[Sequence[float]] = ()
    far: float = 0.0
    based: float = 0.0
    troubles: Counter[str] = field(default_factory=Counter)
    more: dict[BackendAddress, tuple[Sequence[float], BackendState]] = field(default_factory=dict)

    def check(self, row: PortRow) -> None:
        """ValueError if there are more or fewer numbers than backends."""
        if row.columns and {len(column) for column in row.columns} != {len(self.form.backends)}:
            raise ValueError("columns of different lengths")

    def add(self, row: PortRow, seconds: float) -> None:
        self.nodes += 1
        if row.numbers:
            self.numbers = _added(self.numbers, SUMS, row.numbers, seconds)
        if row.columns:
            before = self.columns or [[0.0] * len(self.form.backends)] * len(BACKEND_SUMS)
            self.columns = [
                list(map(add, sums, _rates(name, column, seconds)))
                for name, sums, column in zip(BACKEND_SUMS, before, row.columns, strict=True)
            ]
        if row.far is not None:
            connections = sum(row.columns[0]) if row.columns else 0
            connections += sum(each.numbers[0] for each in row.more)
            base = connections / seconds or (row.numbers[1] if row.numbers else 0)
            self.based += base
            self.far += base * row.far
        if row.troubles:
            self.troubles.update(row.troubles)
        for place, numbers, state in row.more:
            known, seen = self.more.get(place, (_NOTHING, state))
            sums = _added(known, BACKEND_SUMS, numbers, seconds)
            self.more[place] = sums, _as_both_see(seen, state)

    def backends(self) -> Iterator[tuple[BackendAddress, Sequence[float], BackendState]]:
        """Those of the form, and those with a state of their own, which may be the same."""
        rows = zip(*self.columns, strict=True) if self.columns else iter([])
        for place, terminating, ejection in self.form.backends:
            state = BackendState(terminating=terminating, ejection=ejection)
            yield place, next(rows, _NOTHING), state
        for place, (sums, state) in self.more.items():
            yield place, sums, state


def _rates(name: str, column: Iterable[int], seconds: float) -> Iterable[float]:
    return column if name == "active" else [each / seconds for each in column]


def _added(
    sums: Sequence[float], names: Sequence[str], numbers: Sequence[int], seconds: float
) -> list[float]:
    return [
        each + (number if name == "active" else number / seconds)
        for each, name, number in zip(sums, names, numbers, strict=True)
    ]


def _merged(name: PortName, found: Sequence[_FormSums], asked: int) -> ServiceRate:
    """`asked`: how many nodes answered."""
    backends, balance, _ = spread(list(_backends(found)))
    based = sum(each.based for each in found)
    sums = map(sum, zip(*(each.numbers for each in found), strict=True))
    numbers: dict[str, Any] = dict(zip(SUMS, sums, strict=True))
    troubles = sum((each.troubles for each in found), Counter[str]())
    return ServiceRate(
        *name,
        **numbers,
        endpoints=sum(each.offered for each in backends),
        largest_share=balance.largest,
        even_share=balance.even,
        cross_node_share=sum(each.far for each in found) / based if based else None,
        troubles=(*removed_trouble(backends), *_troubles(troubles, asked)),
        backends=backends,
    )


def _backends(found: Iterable[_FormSums]) -> Iterator[BackendRate]:
    """All backends, with no shares yet."""
    every: dict[BackendAddress, tuple[Sequence[float], BackendState]] = {}
    for each in found:
        for place, sums, state in each.backends():
            before, seen = every.get(place, (_NOTHING, state))
            every[place] = list(map(add, before, sums)), _as_both_see(seen, state)
    for place, (sums, state) in sorted(every.items()):
        known: dict[str, Any] = dict(zip(BACKEND_SUMS, sums, strict=True))
        known |= state._asdict() | {"ejection": state.ejection.word}
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
