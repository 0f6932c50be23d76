# SPDX-License-Identifier: Apache-2.0
"""Which Services have a backup, whose backup each one is, and what each gets of it."""

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from operator import attrgetter
from typing import NamedTuple

from ebpflb.model.address import Family, family_of
from ebpflb.model.backup.lending import (
    LentPort,
    backup_name,
    lend,
    lent_slices,
    matching_port,
    may_use,
    problems_of,
)
from ebpflb.model.backup.spill import SpillChange, Spills
from ebpflb.model.endpoint import EndpointSlice, endpoints_of
from ebpflb.model.plan import Frontend
from ebpflb.model.service import Service, ServiceName, ServicePort, ServicePortName
from ebpflb.words.backup import BackupUse

_PortOfFamily = tuple[ServicePortName, Family]
_Slices = tuple[EndpointSlice, ...]


class Lent(NamedTuple):
    """slices: the Service's own, and those that its backup lends it."""

    slices: _Slices
    ports: Mapping[_PortOfFamily, LentPort] = {}
    counts_open: bool = False

    def of(self, port: ServicePort) -> LentPort | None:
        """None if it has nothing of a backup."""
        return self.ports.get((port.name, port.family))

    def marked(self, frontends: tuple[Frontend, ...]) -> tuple[Frontend, ...]:
        """The same, with what they have of the backup."""
        if not self.ports:
            return frontends
        return tuple(
            replace(each, backup=self._use(each), counts_open=self.counts_open or each.counts_open)
            for each in frontends
        )

    def _use(self, frontend: Frontend) -> BackupUse:
        lent = self.ports.get((frontend.service, family_of(frontend.key.address)))
        return lent.use if lent else BackupUse.NONE


class Backups:
    """For one thread, except known_slices(), which is thread-safe."""

    def __init__(
        self,
        service: Callable[[ServiceName], Service | None],
        slices: Callable[[ServiceName], _Slices],
    ) -> None:
        """Both are thread-safe, and tell what is known now."""
        self._service = service
        self._slices = slices
        self._spills = Spills()
        self._moved = set[ServiceName]()
        # Services with annotations that matter here -> the backup, if they name one.
        self._backup_of: dict[ServiceName, ServiceName | None] = {}
        self._primaries = defaultdict[ServiceName, set[ServiceName]](set)

    def add(self, service: Service) -> None:
        annotated = service.annotated
        if annotated.backup is None and annotated.spill_at is None:
            return
        backup = self._backup_of[service.name] = backup_name(service)
        if backup:
            self._primaries[backup].add(service.name)

    def remove(self, name: ServiceName) -> None:
        """One that is not known is not an error."""
        if backup := self._backup_of.pop(name, None):
            self._primaries[backup].discard(name)
            if not self._primaries[backup]:
                del self._primaries[backup]

    def primaries(self, names: Collection[ServiceName]) -> set[ServiceName]:
        """The Services whose backup is one of these."""
        backups = self._primaries.keys() & names
        return {name for backup in backups for name in self._primaries[backup]}

    def backup(self, service: Service) -> Service | None:
        """The Service that it has as its backup; None if it has none, or must not."""
        name = backup_name(service)
        found = self._service(name) if name else None
        return found if found and may_use(service, found) else None

    def known_slices(self, name: ServiceName) -> _Slices:
        """Its own slices and those of its backup, as the source has them."""
        service, own = self._service(name), self._slices(name)
        backup = self.backup(service) if service else None
        return (*own, *self._slices(backup.name)) if backup else own

    def lent(self, service: Service) -> Lent:
        own = self._slices(service.name)
        backup = self.backup(service)
        if backup is None:
            return Lent(own)
        ports = {
            (port.name, port.family): self._lend(port, match, own)
            for port in service.ports
            if (match := matching_port(port, backup))
        }
        pieces = (
            piece
            for port in service.ports
            if (lent := ports.get((port.name, port.family)))
            for piece in lent_slices(port, lent)
        )
        return Lent((*own, *pieces), ports, service.annotated.spill_at is not None)

    def _lend(self, port: ServicePort, match: ServicePort, own: _Slices) -> LentPort:
        others = self._slices(ServiceName(*match.name[:2]))
        return lend(
            endpoints_of(port, sorted(own, key=attrgetter("name"))),
            endpoints_of(match, sorted(others, key=attrgetter("name"))),
            spills=port.annotated.spill_at is not None and port.name in self._spills.ports,
        )

    def slices(self, service: Service | None) -> _Slices:
        """Those of lent()."""
        return self.lent(service).slices if service else ()

    def problems(
        self, others: Mapping[ServiceName, tuple[str, ...]]
    ) -> Mapping[ServiceName, tuple[str, ...]]:
        """`others`, and why annotations have no effect, one line each."""
        found = dict(others)
        for service in filter(None, map(self._service, self._backup_of)):
            backup = self._backup_of[service.name]
            lines = problems_of(service, self._service(backup) if backup else None)
            found[service.name] = (*others.get(service.name, ()), *lines)
        return found

    def limits(self) -> Mapping[ServicePortName, int]:
        """At how many open connections Service ports spill over; those that may."""
        services = filter(None, map(self._service, self._backup_of))
        return {
            port.name: service.annotated.spill_at
            for service in services
            if service.annotated.spill_at is not None and self.backup(service)
            for port in service.ports
        }

    @property
    def has_spilling(self) -> bool:
        """Whether any Service may spill over, or still does."""
        return bool(self._spills.ports or self.limits())

    def observe(self, counts: Mapping[ServicePortName, int], now: float) -> list[SpillChange]:
        """See Spills. The Services concerned must be planned again."""
        changes = self._spills.observe(self.limits(), counts, now)
        self._moved.update(ServiceName(*each.port[:2]) for each in changes)
        return changes

    def take_moved(self) -> set[ServiceName]:
        """The Services that began or ended to spill over since the last call."""
        moved, self._moved = self._moved, set()
        return moved
