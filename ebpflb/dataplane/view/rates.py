# SPDX-License-Identifier: Apache-2.0
"""What each Service carries per second and its problems, from two samples of the maps."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import DescFlag, word
from ebpflb.dataplane.layout.records import DescRecord, backup_use
from ebpflb.dataplane.view.client_limits import LimitedClient, limited_clients
from ebpflb.dataplane.view.counts import grown
from ebpflb.dataplane.view.snapshot import FrontendEntry, read_snapshot
from ebpflb.dataplane.view.traffic import BackendTraffic, Traffic
from ebpflb.model.address import (
    Address,
    Family,
    Protocol,
    SocketAddress,
    family_of,
    format_address,
)
from ebpflb.model.flow import (
    ANSWERS_NOBODY,
    MOST_CLIENTS,
    NO_ENDPOINT,
    NO_LOCAL_ENDPOINT,
    REFUSES,
    BackendRate,
    Counts,
    ServiceRate,
    endpoints_full,
    more_over_limit,
    over_limit,
    removed_trouble,
    spread,
)
from ebpflb.model.plan import FrontendType
from ebpflb.model.service import ServicePortName
from ebpflb.words.backup import BackupUse

# Below this probability, it is not chance that a backend gets no new connections.
_BY_CHANCE = 0.001
# Fewer active connections per backend may be chance; a quarter of the even share is far below it.
_MANY_ACTIVE, _FAR_BELOW = 8, 0.25
# For a backend that never had any connection, as clients with a pool of connections have few.
_SOME_ACTIVE = 2
_NEW_IDLE = "new pod idle"
_NO_NAMES: Mapping[str, str] = {}
# With fewer packets or connections, the answer may still be on its way.
_QUESTIONS = 3

_Key = TypeVar("_Key")


@dataclass(frozen=True, slots=True)
class ServiceTraffic:
    """A Service port. no_local: with a policy Local, and no usable endpoint on this node.

    backups: the ways in which its frontends use its backup. full: how many backends have as many
    connections as they may. limited: the clients that have come to their limits.
    """

    by_type: Mapping[FrontendType, Counts]
    backends: Mapping[SocketAddress, BackendTraffic]
    no_local: bool = False
    backups: frozenset[BackupUse] = frozenset()
    full: int = 0
    limited: tuple[LimitedClient, ...] = ()


@dataclass(frozen=True, slots=True)
class TrafficSample:
    """seconds: by a monotonic clock."""

    seconds: float
    services: Mapping[ServicePortName, ServiceTraffic]


class TrafficSampler:
    """Takes one sample after the other."""

    def __init__(self, maps: MapSet, clock: Callable[[], float] = time.monotonic) -> None:
        self._maps, self._clock = maps, clock
        self._traffic = Traffic()

    def sample(self) -> TrafficSample:
        """The counters of all Services. MapError."""
        seconds = self._clock()
        snapshot = read_snapshot(self._maps, self._traffic.counters)
        by_type = self._traffic.by_type(snapshot)
        by_backend = self._traffic.by_backend(snapshot)
        no_local = {each.service for each in snapshot.frontends if _has_no_local(each)}
        backups = defaultdict[ServicePortName, set[BackupUse]](set)
        limited, ids = limited_clients(self._maps), dict[ServicePortName, int]()
        for each in snapshot.frontends:
            desc = DescRecord.unpack(each.desc)
            backups[each.service].add(backup_use(desc.flags))
            ids[each.service] = desc.service
        return TrafficSample(
            seconds,
            {
                name: ServiceTraffic(
                    by_type.get(name, {}),
                    by_backend.get(name, {}),
                    name in no_local,
                    frozenset(uses),
                    len(snapshot.full.get(name, ())),
                    limited.get(ids[name], ()),
                )
                for name, uses in backups.items()
            },
        )


def _has_no_local(entry: FrontendEntry) -> bool:
    """Whether policy Local leaves no endpoint here, although another node may have one."""
    desc = DescRecord.unpack(entry.desc)
    if entry.type is FrontendType.CLUSTER_IP:
        return bool(desc.flags & DescFlag.LB_DESC_INTERNAL_LOCAL) and not desc.local_count
    return bool(desc.flags & DescFlag.LB_DESC_EXTERNAL_LOCAL) and not desc.others_count


def rates(
    before: TrafficSample, after: TrafficSample, pods: Mapping[str, str] = _NO_NAMES
) -> list[ServiceRate]:
    """What happened between two samples, by Service; those that are gone are left out.

    `pods`: names by address, as far as they are known.
    """
    seconds = max(after.seconds - before.seconds, 1e-9)
    return [
        _service(name, before.services.get(name), after.services[name], seconds, pods)
        for name in sorted(after.services)
    ]


def _service(
    name: ServicePortName,
    before: ServiceTraffic | None,
    now: ServiceTraffic,
    seconds: float,
    pods: Mapping[str, str],
) -> ServiceRate:
    by_type = _grown(before.by_type if before else {}, now.by_type).values()
    totals = Counts(*map(sum, zip(*by_type, strict=True)))
    unordered = (
        each for group in _groups(before, now) for each in _backends(name, group, seconds, pods)
    )
    backends, balance, far = spread(sorted(unordered, key=_rank))
    offered = sum(each.offered for each in backends)
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
        largest_share=balance.largest,
        even_share=balance.even,
        cross_node_share=far,
        troubles=(*_troubles(now, offered, backends), *_limits_met(now, offered, totals, pods)),
        backends=backends,
    )


class _FamilyBackends:
    """The backends of one address family. grown: what each has counted since the first sample."""

    def __init__(
        self,
        backends: Mapping[SocketAddress, BackendTraffic],
        grown: Mapping[SocketAddress, Counts],
    ) -> None:
        self.backends = backends
        self.grown = grown
        self.offered = [key for key, each in backends.items() if each.offered]
        self.even_active = sum(each.active for each in backends.values()) / (len(self.offered) or 1)
        self.has_new = any(grown[key].connections for key in backends)
        self.has_replies = any(grown[key].reply_bytes for key in backends)

    def is_passed_over(self, key: SocketAddress) -> bool:
        """Whether it got no new connections, and that is not chance."""
        if len(self.offered) == 1:
            return False
        others = 1 - 1 / len(self.offered)
        new = sum(self.grown[each].connections for each in self.offered)
        return not self.grown[key].connections and others**new < _BY_CHANCE

    def is_silent(self, key: SocketAddress) -> bool:
        """Whether it answers nothing on its connections while others do: it may hang."""
        counts = self.grown[key]
        is_asked = counts.original_bytes > 0 and counts.connections >= _QUESTIONS
        return is_asked and not counts.reply_bytes and self.has_replies

    def is_starved(self, key: SocketAddress) -> bool:
        """Whether it has few connections and gets no new ones, while others have many."""
        is_few = self.backends[key].active < self.even_active * _FAR_BELOW
        is_told = self.even_active >= _MANY_ACTIVE
        return is_told and is_few and not self.grown[key].connections

    def is_new_and_idle(self, key: SocketAddress) -> bool:
        """Whether it never had a connection and none comes, while others have some."""
        backend = self.backends[key]
        is_unused = not (backend.active or backend.counts.connections or self.has_new)
        return is_unused and self.even_active >= _SOME_ACTIVE


def _groups(before: ServiceTraffic | None, now: ServiceTraffic) -> list[_FamilyBackends]:
    old = {key: each.counts for key, each in before.backends.items()} if before else {}
    grown = _grown(old, {key: each.counts for key, each in now.backends.items()})
    by_family = {
        family: {
            key: each for key, each in now.backends.items() if family_of(key.address) is family
        }
        for family in Family
    }
    return [_FamilyBackends(backends, grown) for backends in by_family.values() if backends]


def _backends(
    name: ServicePortName, group: _FamilyBackends, seconds: float, pods: Mapping[str, str]
) -> Iterator[BackendRate]:
    for key, each in group.backends.items():
        address, counts = format_address(key.address), group.grown[key]
        yield BackendRate(
            address=address,
            port=key.port,
            local=each.local,
            terminating=each.terminating,
            offered=each.offered,
            connections=counts.connections / seconds,
            active=each.active,
            failed=counts.failed / seconds,
            original_bytes=counts.original_bytes / seconds,
            reply_bytes=counts.reply_bytes / seconds,
            share=None,
            trouble=_trouble(name.protocol, key, group),
            ejection=each.ejection.word,
            removed=each.removed,
            pod=pods.get(address, ""),
        )


def _rank(backend: BackendRate) -> tuple[bool, str, int]:
    return backend.offered, backend.address, backend.port


def _trouble(protocol: Protocol, key: SocketAddress, group: _FamilyBackends) -> str:
    if _is_mute(protocol, group.grown[key]) or group.is_silent(key):
        return ANSWERS_NOBODY
    if _has_only_failures(group.grown[key]):
        return REFUSES
    if key not in group.offered:
        return ""
    if group.is_passed_over(key):
        return "gets nothing"
    if group.is_new_and_idle(key):
        return _NEW_IDLE
    return "starved" if group.is_starved(key) else ""


def _is_mute(protocol: Protocol, counts: Counts) -> bool:
    """Whether nothing came back at all. UDP may be one-way on purpose."""
    if counts.reply_packets or counts.reply_bytes:
        return False
    unanswered = protocol is not Protocol.UDP and counts.original_packets >= _QUESTIONS
    return counts.failed > 0 or unanswered


def _has_only_failures(counts: Counts) -> bool:
    """Whether no connection was accepted; there were replies, or it would be mute."""
    return counts.failed >= counts.connections > 0 and not counts.reply_bytes


def _troubles(
    now: ServiceTraffic, offered: int, backends: Collection[BackendRate]
) -> Iterator[str]:
    if now.no_local:
        yield NO_LOCAL_ENDPOINT
    elif not offered:
        yield NO_ENDPOINT
    yield from (use.shown for use in BackupUse if use in now.backups and use.shown)
    yield from removed_trouble(backends)
    for each in backends:
        if each.trouble == _NEW_IDLE:
            yield f"new pod {each.name} idle"
        elif each.trouble:
            yield f"{each.name} {each.trouble}"


def _limits_met(
    now: ServiceTraffic, offered: int, totals: Counts, pods: Mapping[str, str]
) -> Iterator[str]:
    """Clients only while connections are refused or dropped."""
    if now.full:
        yield endpoints_full(now.full, offered)
    if totals.refused or totals.dropped:
        for each in now.limited[:MOST_CLIENTS]:
            name = client_name(each.client)
            yield over_limit(pods.get(name, name), word(each.reason))
        if more := len(now.limited[MOST_CLIENTS:]):
            yield more_over_limit(more)


def client_name(client: Address) -> str:
    """The address, or the network outside that counts as one client (lb_client_fill())."""
    is_network = family_of(client) is Family.IPV6 and not any(client[8:])
    return f"{format_address(client)}/64" if is_network else format_address(client)


def _grown(old: Mapping[_Key, Counts], new: Mapping[_Key, Counts]) -> dict[_Key, Counts]:
    return {key: Counts(*grown(old.get(key, Counts()), each)) for key, each in new.items()}
