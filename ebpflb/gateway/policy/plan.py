# SPDX-License-Identifier: Apache-2.0
"""What is to be there, and what is to be told, given all objects."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ebpflb.gateway.policy.addresses import Ranges, places
from ebpflb.gateway.policy.attachment import AttachedRoute, attached_routes, attachments
from ebpflb.gateway.policy.backends import ResolvedBackends, resolved
from ebpflb.gateway.policy.found import FoundObjects, Key
from ebpflb.gateway.policy.imports import (
    ImportVerdict,
    import_service,
    import_service_name,
    import_slices,
    import_verdicts,
)
from ebpflb.gateway.policy.services import (
    WantedObjects,
    service_name,
    service_object,
    slice_objects,
)
from ebpflb.gateway.policy.statuses import (
    WantedStatus,
    class_status,
    gateway_status,
    import_status,
    route_status,
)
from ebpflb.gateway.policy.verdict import GatewayVerdict, verdict


class Plan(NamedTuple):
    """ips: of those ServiceImports that must get others. statuses: of objects whose status must
    change.
    """

    wanted: WantedObjects
    ips: Mapping[Key, Sequence[str]]
    statuses: Sequence[WantedStatus]


def plan(found: FoundObjects, ranges: Ranges, now: str) -> Plan:
    """`ranges`: from which Gateways may choose their addresses. `now`: in RFC 3339."""
    names = {key: service_name(each) for key, each in found.own_gateways.items()}
    where = places(found, ranges, names)
    of_routes = attachments(found)
    routes = attached_routes(of_routes, found)
    backends = {
        (kind, key): resolved(AttachedRoute(kind, found.routes[kind][key]), found)
        for kind, key in of_routes
    }
    verdicts = [
        verdict(each, where[key], routes, found) for key, each in found.own_gateways.items()
    ]
    imports = list(import_verdicts(found))
    statuses = [
        *(class_status(each, now) for each in found.own_classes),
        *(gateway_status(each, now) for each in verdicts),
        *(
            route_status(kind, found.routes[kind][key], attached, backends[kind, key].finding, now)
            for (kind, key), attached in of_routes.items()
        ),
        *(import_status(each, now) for each in imports),
    ]
    changed = [each for each in statuses if each.before != each.after]
    wanted = _wanted(verdicts, backends, found)
    _add_imports(wanted, imports, found)
    ips = {each.item.key: each.ips for each in imports if each.ips != (each.item.spec.ips or [])}
    return Plan(wanted, ips, changed)


def _wanted(
    verdicts: Sequence[GatewayVerdict],
    backends: Mapping[tuple[str, Key], ResolvedBackends],
    found: FoundObjects,
) -> WantedObjects:
    wanted = WantedObjects({}, {})
    for each in verdicts:
        if not each.ports:
            continue
        service = service_object(each.gateway, each.place.asked, list(each.ports))
        wanted.services[service_name(each.gateway)] = service
        served = {
            port: backends[route.kind, route.route.key].backends
            for port, route in each.ports.items()
            if route
        }
        wanted.slices.update(slice_objects(each.gateway, served, found))
    return wanted


def _add_imports(
    wanted: WantedObjects, imports: Sequence[ImportVerdict], found: FoundObjects
) -> None:
    for each in imports:
        if each.has_service:
            wanted.services[import_service_name(each.item)] = import_service(each.item)
            wanted.slices.update(import_slices(each.item, found))
