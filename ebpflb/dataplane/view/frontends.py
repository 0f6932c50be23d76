# SPDX-License-Identifier: Apache-2.0
"""The frontends in force as the model's values, with what uses their backends now."""

from array import array
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout import enums
from ebpflb.dataplane.layout.records import FRONTEND_TYPES, DescRecord, frontend_key_of
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.dataplane.services.source_ranges import SourceRanges
from ebpflb.dataplane.view.snapshot import BackendEntry, FrontendEntry, Snapshot, read_snapshot
from ebpflb.model.address import family_of
from ebpflb.model.flow import Counts
from ebpflb.model.plan import Backend, Choice, Frontend, IfEmpty
from ebpflb.model.service import ServiceName, ServicePortName, TrafficPolicy
from ebpflb.model.source_ranges import Prefixes

_IF_EMPTY: Mapping[int, IfEmpty] = {
    enums.IfEmptyCode.LB_EMPTY_REFUSE: IfEmpty.REFUSE,
    enums.IfEmptyCode.LB_EMPTY_DROP: IfEmpty.DROP,
}


class BackendInUse(NamedTuple):
    """active: connections and flows that use it now. usable: it takes new connections."""

    backend: Backend
    usable: bool
    active: int
    counts: Counts


class FrontendInForce(NamedTuple):
    """backends: those of the Service port, also of `frontend`.

    draining: those that take no new connections but still have flows.
    """

    frontend: Frontend
    counts: Counts
    backends: Mapping[Backend, BackendInUse]
    draining: tuple[BackendInUse, ...]


def read_frontends(maps: MapSet, only: ServiceName | None = None) -> list[FrontendInForce]:
    """Every frontend, or those of one Service, by Service, type and address. MapError."""
    snapshot = read_snapshot(maps)
    decoder = _Decoder(maps, snapshot)
    found = [each for each in snapshot.frontends if only in (None, ServiceName(*each.service[:2]))]
    return [decoder.frontend(each) for each in sorted(found, key=_rank)]


def decode_frontend(
    desc: DescRecord,
    service: ServicePortName,
    choices: tuple[Iterable[Backend], Iterable[Backend]],
    allowed_sources: Prefixes,
) -> Frontend:
    """The frontend that the model planned, without `serving`. choices: its local, its others."""
    local, others = choices
    return Frontend(
        key=frontend_key_of(desc.frontend),
        type=FRONTEND_TYPES[desc.type],
        service=service,
        local=Choice(tuple(sorted(local)), _IF_EMPTY[desc.local_if_empty]),
        others=Choice(tuple(sorted(others)), _IF_EMPTY[desc.others_if_empty]),
        internal_policy=policy_of(desc, enums.DescFlag.LB_DESC_INTERNAL_LOCAL),
        external_policy=policy_of(desc, enums.DescFlag.LB_DESC_EXTERNAL_LOCAL),
        affinity_timeout=desc.affinity_timeout,
        allowed_sources=allowed_sources,
        masquerade=bool(desc.flags & enums.DescFlag.LB_DESC_MASQUERADE),
    )


def policy_of(desc: DescRecord, flag: enums.DescFlag) -> TrafficPolicy:
    return TrafficPolicy.LOCAL if desc.flags & flag else TrafficPolicy.CLUSTER


def _rank(entry: FrontendEntry) -> tuple[object, ...]:
    desc = DescRecord.unpack(entry.desc)
    return *entry.service, desc.type, family_of(desc.address), entry.key


class _Decoder:
    """The slots and source ranges beside a snapshot, and what was decoded for several frontends."""

    def __init__(self, maps: MapSet, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._slots = Mirror(maps["lb_slots"])
        self._slots.load()
        self._source_ranges = SourceRanges(maps["lb_src_ranges"])
        self._source_ranges.load()
        self._by_index = {
            each.map_index: each for group in snapshot.backends.values() for each in group
        }
        self._in_use: dict[ServicePortName, list[BackendInUse]] = {}

    def frontend(self, entry: FrontendEntry) -> FrontendInForce:
        desc = DescRecord.unpack(entry.desc)
        choices = (
            self._backends(desc.service, desc.local_base, desc.local_count),
            self._backends(desc.service, desc.others_base, desc.others_count),
        )
        sources = self._source_ranges.prefixes(desc.source_ranges)
        in_use = self._backends_of(entry.service)
        return FrontendInForce(
            decode_frontend(desc, entry.service, choices, sources),
            self._snapshot.counts_of_frontend(entry),
            {each.backend: each for each in in_use},
            tuple(sorted(each for each in in_use if each.active and not each.usable)),
        )

    def _backends(self, service_id: int, base: int, count: int) -> Iterable[Backend]:
        for index in array("I", self._slots.span(base, count)):
            entry = self._by_index.get(index)
            if entry and entry.service_id == service_id:
                yield _backend(entry)

    def _backends_of(self, service: ServicePortName) -> list[BackendInUse]:
        """The usable ones last, for an address may be that of an earlier backend, too."""
        if service not in self._in_use:
            snapshot = self._snapshot
            group = sorted(snapshot.backends.get(service, ()), key=lambda each: each.usable)
            self._in_use[service] = [
                BackendInUse(
                    _backend(each),
                    each.usable,
                    snapshot.active_of(each),
                    snapshot.counts_of_backend(each),
                )
                for each in group
            ]
        return self._in_use[service]


def _backend(entry: BackendEntry) -> Backend:
    return Backend(entry.address, entry.port, entry.local, entry.terminating)
