# SPDX-License-Identifier: Apache-2.0
"""Backup: another Service whose endpoints a Service port has while none of its own is usable.

A Service that spills over has them, too. They are lent as slices of the Service itself, so that
all rules for its own endpoints hold for them. While they are not in use they are lent all the
same, as endpoints that are not ready: earlier connections may have them, on this node or another.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ebpflb.model.endpoint import (
    Endpoint,
    EndpointSlice,
    PackedEndpoints,
    PortEndpoint,
    SlicePort,
)
from ebpflb.model.service import Service, ServiceName, ServicePort
from ebpflb.model.traffic_policy import has_usable
from ebpflb.words import annotations
from ebpflb.words.backup import EVERY_NAMESPACE, BackupUse

# Comes after all names that slices of the API can have.
_LENT = "~lent"
_NO_EFFECT = f"the annotation {annotations.BACKUP} has no effect"

_SPILL_ALONE = f"the annotation {annotations.SPILL_AT} has no effect without {annotations.BACKUP}"


class LentPort(NamedTuple):
    """What a Service port has of its backup, but for endpoints that are its own anyway."""

    use: BackupUse
    endpoints: tuple[PortEndpoint, ...]


def backup_name(service: Service) -> ServiceName | None:
    """The Service that is to be its backup, which may not exist or not allow it."""
    text = service.annotated.backup
    if text is None:
        return None
    namespace, _, name = text.rpartition("/")
    return ServiceName(namespace or service.name.namespace, name)


def may_use(service: Service, backup: Service | None) -> bool:
    if backup is None or not backup.ports or backup.name == service.name:
        return False
    home = service.name.namespace
    allowed = {backup.name.namespace, *(backup.annotated.backup_for or ())}
    return not allowed.isdisjoint({home, EVERY_NAMESPACE})


def matching_port(port: ServicePort, backup: Service) -> ServicePort | None:
    """The one with the same name; else with the same number; else the only one.

    Only ports of the same protocol and family count.
    """
    same = [
        each
        for each in backup.ports
        if (each.family, each.name.protocol) == (port.family, port.name.protocol)
    ]
    by_name = [each for each in same if each.name.port == port.name.port]
    by_number = [each for each in same if each.port == port.port]
    found = by_name or by_number or same
    return found[0] if len(found) == 1 else None


def lend(own: Sequence[PortEndpoint], others: Sequence[PortEndpoint], *, spills: bool) -> LentPort:
    """What a Service port gets of its backup's endpoints, given its own.

    spills: whether it has so many open connections that ready ones of the backup are to help.
    """
    known = {(each.endpoint.address, each.port) for each in own}
    lent = tuple(each for each in others if (each.endpoint.address, each.port) not in known)
    if has_usable(own):
        helps = spills and any(each.endpoint.ready for each in lent)
        return LentPort(BackupUse.SPILL if helps else BackupUse.NONE, lent)
    return LentPort(BackupUse.ONLY if has_usable(lent) else BackupUse.NONE, lent)


def lent_slices(port: ServicePort, lent: LentPort) -> Iterator[EndpointSlice]:
    """As slices of the port's own Service."""
    alike = defaultdict[tuple[int, int | None], list[Endpoint]](list)
    for endpoint, number, weight in lent.endpoints:
        is_waiting = lent.use is BackupUse.NONE
        alike[number, weight].append(_waiting(endpoint) if is_waiting else endpoint)
    namespace, service, name, protocol = port.name
    for (number, weight), endpoints in alike.items():
        yield EndpointSlice(
            namespace,
            _LENT,
            service,
            port.family,
            (SlicePort(name, protocol, number),),
            PackedEndpoints(endpoints),
            weight,
        )


def _waiting(endpoint: Endpoint) -> Endpoint:
    """Never usable, not even as a last resort, but it may serve earlier flows."""
    return endpoint._replace(
        ready=False, serving=endpoint.ready or endpoint.serving, terminating=False
    )


def problems_of(service: Service, backup: Service | None) -> Iterator[str]:
    """Why its annotations have no effect, one line each. `backup`: None if there is none."""
    name = backup_name(service)
    if name is None:
        if service.annotated.spill_at is not None:
            yield _SPILL_ALONE
    elif name == service.name:
        yield f"{_NO_EFFECT}: a Service cannot be its own backup"
    elif backup is None or not may_use(service, backup):
        yield _not_allowed(service, name)
    else:
        for port in service.ports:
            if matching_port(port, backup) is None:
                which = f"{port.name.port or port.port}/{port.name.protocol.name}"
                where = f"over {port.family.text}"
                yield f"{_NO_EFFECT} for port {which} {where}: {name} has no such port"


def _not_allowed(service: Service, name: ServiceName) -> str:
    """The same whether it does not exist or does not allow it: not everybody may know that."""
    if name.namespace == service.name.namespace:
        return f"{_NO_EFFECT}: there is no Service {name} with a ClusterIP"
    return (
        f"{_NO_EFFECT}: there is no Service {name} with a ClusterIP whose annotation "
        f"{annotations.BACKUP_FOR} names {service.name.namespace}"
    )
