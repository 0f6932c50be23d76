# SPDX-License-Identifier: Apache-2.0
"""What is found about a Gateway and its listeners."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ebpflb.gateway.policy.addresses import GatewayPlace, own_service
from ebpflb.gateway.policy.attachment import AttachedRoute, own_kind, supported_kinds
from ebpflb.gateway.policy.conditions import WantedCondition
from ebpflb.gateway.policy.endpoints import WantedPort
from ebpflb.gateway.policy.found import FoundObjects, Key
from ebpflb.gateway.policy.objects import Gateway, GatewayAddress, GatewayListener, RouteKind
from ebpflb.gateway.policy.services import port_of, service_name

NO_PARAMETERS = "this controller has no parameters"
_NOT_ACCEPTED = "it is not accepted"


class ListenerVerdict(NamedTuple):
    """routes: those that are attached, the oldest first, which is the one that is served."""

    listener: GatewayListener
    kinds: Sequence[RouteKind]
    routes: Sequence[AttachedRoute]
    accepted: WantedCondition
    resolved: WantedCondition

    def findings(self, programmed: WantedCondition) -> Sequence[WantedCondition]:
        """`programmed`: of the Gateway."""
        if not (self.accepted.is_so and self.kinds):
            own = WantedCondition("Programmed", False, "Invalid", "see the other conditions")
        elif programmed.is_so:
            own = WantedCondition("Programmed", True, "Programmed")
        else:
            own = WantedCondition("Programmed", False, "Pending", programmed.message)
        conflicted = WantedCondition("Conflicted", False, "NoConflicts")
        return self.accepted, self.resolved, conflicted, own


class GatewayVerdict(NamedTuple):
    """ports: of its Service, which it has if there is any; each with the route that is served."""

    gateway: Gateway
    place: GatewayPlace
    listeners: Sequence[ListenerVerdict]
    accepted: WantedCondition
    programmed: WantedCondition
    addresses: Sequence[GatewayAddress]
    ports: Mapping[WantedPort, AttachedRoute | None]


def verdict(
    gateway: Gateway,
    place: GatewayPlace,
    routes: Mapping[tuple[Key, str], Sequence[AttachedRoute]],
    found: FoundObjects,
) -> GatewayVerdict:
    listeners = [
        _listener(each, place, routes.get((gateway.key, each.name), ()))
        for each in gateway.spec.listeners
    ]
    accepted = _accepted(gateway, place, listeners)
    obstacle = _obstacle(gateway, place, accepted, found)
    ports = {
        port_of(each.listener): each.routes[0] if each.routes else None
        for each in listeners
        if not obstacle
        and own_kind(each.listener)
        # What a load balancer serves stays: without its Service, the address would be free again.
        and (each.accepted.is_so or not place.asked.static)
    }
    programmed = obstacle or _programmed(gateway, place, accepted, found)
    addresses = _addresses(gateway, found) if ports else []
    return GatewayVerdict(gateway, place, listeners, accepted, programmed, addresses, ports)


def _listener(
    listener: GatewayListener, place: GatewayPlace, routes: Sequence[AttachedRoute]
) -> ListenerVerdict:
    kinds = supported_kinds(listener)
    if own_kind(listener) is None:
        what = f"{listener.protocol} is not supported, only TCP and UDP"
        accepted = WantedCondition("Accepted", False, "UnsupportedProtocol", what)
    elif taken := place.unavailable.get(listener.name):
        accepted = WantedCondition("Accepted", False, "PortUnavailable", taken)
    else:
        accepted = WantedCondition("Accepted", True, "Accepted")
    asked = (listener.allowed_routes.kinds if listener.allowed_routes else None) or ()
    resolved = WantedCondition("ResolvedRefs", True, "ResolvedRefs")
    if unknown := [each.kind for each in asked if each not in kinds]:
        what = f"a listener of {listener.protocol} cannot have a {unknown[0]}"
        resolved = WantedCondition("ResolvedRefs", False, "InvalidRouteKinds", what)
    return ListenerVerdict(listener, kinds, routes, accepted, resolved)


def _accepted(
    gateway: Gateway, place: GatewayPlace, listeners: Sequence[ListenerVerdict]
) -> WantedCondition:
    if gateway.spec.infrastructure and gateway.spec.infrastructure.parameters_ref:
        return WantedCondition("Accepted", False, "InvalidParameters", NO_PARAMETERS)
    if place.problem and place.problem.type == "Accepted":
        return place.problem
    wrong = [each.listener.name for each in listeners if not each.accepted.is_so]
    if not wrong:
        return WantedCondition("Accepted", True, "Accepted")
    what = f"not accepted: {', '.join(wrong)}"
    return WantedCondition("Accepted", len(wrong) < len(listeners), "ListenersNotValid", what)


def _obstacle(
    gateway: Gateway, place: GatewayPlace, accepted: WantedCondition, found: FoundObjects
) -> WantedCondition | None:
    """Why it can have no Service."""
    if not accepted.is_so and accepted.reason != "ListenersNotValid":
        return WantedCondition("Programmed", False, "Invalid", _NOT_ACCEPTED)
    key = service_name(gateway)
    if key in found.services and not own_service(gateway, key, found):
        what = f"Service {'/'.join(key)} is there already, and is not of this Gateway"
        return WantedCondition("Programmed", False, "Invalid", what)
    return place.problem


def _programmed(
    gateway: Gateway, place: GatewayPlace, accepted: WantedCondition, found: FoundObjects
) -> WantedCondition:
    key = service_name(gateway)
    name, service = "/".join(key), own_service(gateway, key, found)
    given = service.outer_addresses if service else []
    has_host = service and any(each.hostname for each in service.ingress)
    if not accepted.is_so:
        return WantedCondition("Programmed", False, "Invalid", _NOT_ACCEPTED)
    reason = what = ""
    if key in found.refusals:
        reason, what = "Invalid", found.refusals[key]
    elif not service:
        reason, what = "Pending", f"Service {name} is not there yet"
    elif not (given or has_host):
        what = f"no load balancer has given Service {name} an address yet"
        reason = "AddressNotAssigned"
    elif place.asked.requested and place.asked.requested not in given:
        what = f"the load balancer has not given it {place.asked.requested}"
        reason = "AddressNotUsable"
    return WantedCondition("Programmed", not reason, reason or "Programmed", what)


def _addresses(gateway: Gateway, found: FoundObjects) -> Sequence[GatewayAddress]:
    service = own_service(gateway, service_name(gateway), found)
    if not service:
        return []
    hosts = (each.hostname for each in service.ingress if each.hostname and not each.ip)
    return [
        *(GatewayAddress(value=each) for each in service.outer_addresses),
        *(GatewayAddress(type="Hostname", value=each) for each in hosts),
    ]
