# SPDX-License-Identifier: Apache-2.0
"""What Services do per second, and what is wrong with them: two looks made into rows. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TypeVar

from ebpflb.dataplane.view.traffic import BackendKey, BackendLook, Look, ServiceLook, added
from ebpflb.model.address import Family, Protocol
from ebpflb.model.flow import Counts
from ebpflb.model.service import ServicePortName

# Chance would leave a backend without any of so many connections once in so many times.
_BY_CHANCE = 0.001
# Fewer active ones for each backend say nothing; a quarter of that is far from even.
_MANY_ACTIVE, _FAR_BELOW = 8, 0.25
# So many packets, or connections, into nothing are no question whose answer is under way.
_QUESTIONS = 3

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class BackendRate:
    """One backend. Per second: connections, failed, bytes.

    `share`: of its family's new connections to the Service, of the active ones if there were no new
    ones, None without any.
    """

    address: str
    port: int
    local: bool
    terminating: bool
    offered: bool
    connections: float
    active: int
    failed: float
    original_bytes: float
    reply_bytes: float
    share: float | None
    trouble: str


@dataclass(frozen=True, slots=True)
class ServiceRate:
    """One Service port. Per second: connections, refused, dropped, failed, retransmits, bytes.

    `largest_share`: of the backend with most connections among those of its family; `even_share`:
    what each of these would have. `cross_node_share`: connections to backends on other nodes.
    Shares are None without connections. `endpoints`: backends that take new connections.
    """

    namespace: str
    service: str
    port: str
    protocol: str
    connections: float
    active: int
    refused: float
    dropped: float
    failed: float
    retransmits: float
    original_bytes: float
    reply_bytes: float
    endpoints: int
    largest_share: float | None
    even_share: float | None
    cross_node_share: float | None
    troubles: tuple[str, ...]
    backends: tuple[BackendRate, ...]

    @property
    def lost(self) -> float:
        """Connections that came to nothing, per second."""
        return self.refused + self.dropped + self.failed

    @property
    def imbalance(self) -> float:
        """How much more than its even share the backend with most connections has; 0: none."""
        return (self.largest_share or 0.0) / self.even_share if self.even_share else 0.0


def rates(before: Look, after: Look) -> list[ServiceRate]:
    """What happened between two looks, by Service; those that are gone are left out."""
    seconds = max(after.seconds - before.seconds, 1e-9)
    return [
        _service(name, before.services.get(name), after.services[name], seconds)
        for name in sorted(after.services)
    ]


def _service(
    name: ServicePortName, before: ServiceLook | None, now: ServiceLook, seconds: float
) -> ServiceRate:
    old_frontends = before.frontends if before else {}
    totals: Counts = reduce(added, _grown(old_frontends, now.frontends).values(), Counts())
    groups = _groups(before, now)
    backends = tuple(each for group in groups for each in _backends(name, group, seconds))
    busiest = max(groups, key=lambda group: group.every, default=None)
    every = sum(group.every for group in groups)
    far = sum(group.taken[key] for group in groups for key in group.taken if not group[key].local)
    offered = sum(len(group.offered) for group in groups)
    return ServiceRate(
        namespace=name.namespace,
        service=name.service,
        port=name.port,
        protocol=name.protocol.name,
        connections=totals.connections / seconds,
        active=sum(each.active for each in now.backends.values()),
        refused=totals.refused / seconds,
        dropped=totals.dropped / seconds,
        failed=totals.failed / seconds,
        retransmits=totals.retransmits / seconds,
        original_bytes=totals.original_bytes / seconds,
        reply_bytes=totals.reply_bytes / seconds,
        endpoints=offered,
        largest_share=max(busiest.taken.values()) / busiest.every if busiest and every else None,
        even_share=1 / len(busiest.offered) if busiest and every and busiest.offered else None,
        cross_node_share=far / every if every else None,
        troubles=tuple(_troubles(now, offered, backends)),
        backends=backends,
    )


class _Group:
    """The backends of one family: what each has got since, and new connections or active ones."""

    def __init__(
        self, looks: Mapping[BackendKey, BackendLook], grown: Mapping[BackendKey, Counts]
    ) -> None:
        self.looks = looks
        self.grown = grown
        self.offered = [key for key, look in looks.items() if look.offered]
        new = {key: grown[key].connections for key in looks}
        active = {key: look.active for key, look in looks.items()}
        self.taken = new if any(new.values()) else active
        self.every = sum(self.taken.values())
        self.replies = any(grown[key].reply_bytes for key in looks)

    def __getitem__(self, key: BackendKey) -> BackendLook:
        return self.looks[key]

    def is_passed_over(self, key: BackendKey) -> bool:
        """Whether it got nothing new, and that is not by chance."""
        others = 1 - 1 / len(self.offered)
        new = sum(self.grown[each].connections for each in self.offered)
        return not self.grown[key].connections and others**new < _BY_CHANCE

    def is_silent(self, key: BackendKey) -> bool:
        """Whether it says nothing on connections on which others do: it may hang."""
        counts = self.grown[key]
        is_asked = counts.original_bytes > 0 and counts.connections >= _QUESTIONS
        return is_asked and not counts.reply_bytes and self.replies

    def is_starved(self, key: BackendKey) -> bool:
        """Whether others have many connections, and it has few and gets none of the new ones."""
        even = sum(self.looks[each].active for each in self.offered) / len(self.offered)
        is_few = self.looks[key].active < even * _FAR_BELOW
        return even >= _MANY_ACTIVE and is_few and not self.grown[key].connections


def _groups(before: ServiceLook | None, now: ServiceLook) -> list[_Group]:
    old = {key: each.counts for key, each in before.backends.items()} if before else {}
    grown = _grown(old, {key: each.counts for key, each in now.backends.items()})
    by_family = {
        family: {key: each for key, each in now.backends.items() if key.family is family}
        for family in Family
    }
    return [_Group(looks, grown) for looks in by_family.values() if looks]


def _backends(name: ServicePortName, group: _Group, seconds: float) -> Iterator[BackendRate]:
    for key, look in group.looks.items():
        counts = group.grown[key]
        yield BackendRate(
            address=key.address,
            port=key.port,
            local=look.local,
            terminating=look.terminating,
            offered=look.offered,
            connections=counts.connections / seconds,
            active=look.active,
            failed=counts.failed / seconds,
            original_bytes=counts.original_bytes / seconds,
            reply_bytes=counts.reply_bytes / seconds,
            share=group.taken[key] / group.every if group.every else None,
            trouble=_trouble(name.protocol, key, group),
        )


def _trouble(protocol: Protocol, key: BackendKey, group: _Group) -> str:
    if _is_mute(protocol, group.grown[key]) or group.is_silent(key):
        return "answers nobody"
    if key not in group.offered or len(group.offered) == 1:
        return ""
    if group.is_passed_over(key):
        return "gets nothing"
    return "starved" if group.is_starved(key) else ""


def _is_mute(protocol: Protocol, counts: Counts) -> bool:
    """Whether nothing at all came back; UDP may be meant to go one way only."""
    if counts.reply_packets or counts.reply_bytes:
        return False
    unanswered = protocol is not Protocol.UDP and counts.original_packets >= _QUESTIONS
    return counts.failed > 0 or unanswered


def _troubles(now: ServiceLook, offered: int, backends: Iterable[BackendRate]) -> Iterator[str]:
    if now.no_local:
        yield "no local endpoint"
    elif not offered:
        yield "no endpoint"
    for each in backends:
        if each.trouble:
            yield f"{each.address} {each.trouble}"


def _grown(old: Mapping[_Key, Counts], new: Mapping[_Key, Counts]) -> dict[_Key, Counts]:
    """What was counted since; counters that are smaller than before have begun anew."""
    return {key: _difference(old.get(key, Counts()), each) for key, each in new.items()}


def _difference(old: Counts, new: Counts) -> Counts:
    pairs = list(zip(old, new, strict=True))
    if any(after < before for before, after in pairs):
        return new
    return Counts(*(after - before for before, after in pairs))
