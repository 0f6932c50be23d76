# SPDX-License-Identifier: Apache-2.0
"""The addresses of Gateways, and who has a port there. What is older comes first.

An address that a Gateway has asked for is its namespace's: no Gateway of another one gets it.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from ipaddress import ip_address, ip_network
from typing import NamedTuple

from ebpflb.gateway.policy.attachment import own_kind
from ebpflb.gateway.policy.conditions import WantedCondition
from ebpflb.gateway.policy.found import FoundObjects, Key, is_made_of
from ebpflb.gateway.policy.objects import ApiItem, Gateway, GivenService
from ebpflb.model.address import format_address, parse_address

Ranges = Collection[str]
"""CIDRs."""


class AskedAddresses(NamedTuple):
    """static: of the ranges that Gateways may choose from. requested: of the load balancer."""

    static: Sequence[str] = ()
    requested: str = ""

    @property
    def named(self) -> Sequence[str]:
        return self.static or ([self.requested] if self.requested else [])


class GatewayPlace(NamedTuple):
    """Where a Gateway is served. problem: why it is nowhere.

    unavailable: by the name of a listener, who else has its port.
    """

    asked: AskedAddresses
    problem: WantedCondition | None
    unavailable: Mapping[str, str]


def places(
    found: FoundObjects, ranges: Ranges, names: Mapping[Key, Key]
) -> Mapping[Key, GatewayPlace]:
    """`names`: of the Services of our Gateways."""
    claims = _Claims(found, names)
    return {
        key: claims.place(gateway, _asked(gateway, ranges))
        for key, gateway in found.own_gateways.items()
    }


def own_service(owner: ApiItem, name: Key, found: FoundObjects) -> GivenService | None:
    """The Service of a Gateway or ServiceImport, if it is there and is its own."""
    service = found.services.get(name)
    return service if service and is_made_of(service, owner) else None


def _asked(gateway: Gateway, ranges: Ranges) -> AskedAddresses | WantedCondition:
    entries = gateway.spec.addresses or ()
    if wrong := [each.type for each in entries if each.type != "IPAddress"]:
        what = f"addresses of type {wrong[0]} are not supported, only IPAddress"
        return WantedCondition("Accepted", False, "UnsupportedAddress", what)
    try:
        addresses = [str(ip_address(each.value)) for each in entries if each.value]
    except ValueError as error:
        return WantedCondition("Accepted", False, "UnsupportedAddress", str(error))
    static = [each for each in addresses if any(_is_in(each, one) for one in ranges)]
    if len(static) == len(addresses):
        return AskedAddresses(static)
    if len(addresses) == 1:
        return AskedAddresses((), addresses[0])
    what = "several addresses must all be in the ranges from which Gateways may choose"
    return WantedCondition("Programmed", False, "AddressNotUsable", what)


def _same(address: str) -> str:
    """As this address is written elsewhere."""
    try:
        return format_address(parse_address(address))
    except ValueError:
        return address


def _is_in(address: str, cidr: str) -> bool:
    return ip_address(address) in ip_network(cidr)


class _ClaimedPort(NamedTuple):
    protocol: str
    number: int


class _Claims:
    """Who has what so far."""

    def __init__(self, found: FoundObjects, names: Mapping[Key, Key]) -> None:
        self._found = found
        self._names = names
        self._owners: dict[str, str] = {}
        self._ports: dict[tuple[str, _ClaimedPort], str] = {}
        self._node_ports: dict[_ClaimedPort, str] = {}
        self._holders: defaultdict[str, list[GivenService]] = defaultdict(list)
        generated = {
            names[key]
            for key, gateway in found.own_gateways.items()
            if own_service(gateway, names[key], found)
        }
        for service in found.services.values():
            for port in service.spec.ports or ():
                if port.node_port:
                    place = _ClaimedPort(port.protocol, port.node_port)
                    self._node_ports[place] = "/".join(service.key)
            for address in service.outer_addresses if service.key not in generated else ():
                self._holders[_same(address)].append(service)

    def place(self, gateway: Gateway, asked: AskedAddresses | WantedCondition) -> GatewayPlace:
        """The oldest Gateway must come first."""
        if isinstance(asked, WantedCondition):
            return GatewayPlace(AskedAddresses(), asked, {})
        own = gateway.metadata.namespace
        for address in asked.named:
            older = (each.key[0] for each in self._older(address, gateway))
            owners = [each for each in (self._owners.get(address, own), *older) if each != own]
            if owners:
                what = f"{address} is taken by the namespace {owners[0]}"
                problem = WantedCondition("Programmed", False, "AddressNotUsable", what)
                return GatewayPlace(asked, problem, {})
        self._owners.update(dict.fromkeys(asked.named, own))
        service = own_service(gateway, self._names[gateway.key], self._found)
        addresses = asked.static or (service.outer_addresses if service else ())
        return GatewayPlace(asked, None, self._claimed(gateway, addresses))

    def _older(self, address: str, gateway: Gateway) -> Iterator[GivenService]:
        """Services of others that have had it for longer."""
        return (each for each in self._holders[address] if each.age < gateway.age)

    def _claimed(self, gateway: Gateway, addresses: Iterable[str]) -> Mapping[str, str]:
        """Take the ports of its listeners; returns those that it does not get."""
        unavailable: dict[str, str] = {}
        for listener in gateway.spec.listeners:
            if own_kind(listener) is None:
                continue
            port = _ClaimedPort(listener.protocol, listener.port)
            for address in addresses:
                if holder := self._holder(address, port, gateway):
                    what = f"{address}, {port.protocol} port {port.number}: {holder} has it"
                    unavailable.setdefault(listener.name, what)
                else:
                    self._ports[address, port] = f"Gateway {'/'.join(gateway.key)}"
        return unavailable

    def _holder(self, address: str, port: _ClaimedPort, gateway: Gateway) -> str:
        """Empty if it is free."""
        if holder := self._ports.get((address, port)):
            return holder
        if address in self._found.node_addresses and port in self._node_ports:
            return f"as a NodePort, Service {self._node_ports[port]}"
        for service in self._older(address, gateway):
            if any(port == (each.protocol, each.port) for each in service.spec.ports or ()):
                return f"Service {'/'.join(service.key)}"
        return ""
