# SPDX-License-Identifier: Apache-2.0
"""Objects as they come and go, and which Services must be planned again because of it."""

from collections.abc import KeysView
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from ebpflb.model.address import Address
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.health_check import HealthCheck, health_check
from ebpflb.model.node import Node
from ebpflb.model.plan import Frontend, FrontendKey, frontend_keys, plan_service
from ebpflb.model.service import Service, ServiceCidr, ServiceName

ApiObject = Service | EndpointSlice | Node | ServiceCidr
ServiceNames = set[ServiceName]


class Kind(StrEnum):
    """The kinds of API objects that matter here."""

    SERVICE = "Service"
    ENDPOINT_SLICE = "EndpointSlice"
    NODE = "Node"
    SERVICE_CIDR = "ServiceCIDR"

    @property
    def is_namespaced(self) -> bool:
        return self in (Kind.SERVICE, Kind.ENDPOINT_SLICE)


class ObjectKey(NamedTuple):
    """Names an API object; namespace is empty where objects have none."""

    kind: Kind
    namespace: str
    name: str

    def __str__(self) -> str:
        place = f"{self.namespace}/" if self.namespace else ""
        return f"{self.kind} {place}{self.name}"


def key_of(item: ApiObject) -> ObjectKey:
    if isinstance(item, Service):
        return ObjectKey(Kind.SERVICE, *item.name)
    if isinstance(item, EndpointSlice):
        return ObjectKey(Kind.ENDPOINT_SLICE, item.namespace, item.name)
    kind = Kind.NODE if isinstance(item, Node) else Kind.SERVICE_CIDR
    return ObjectKey(kind, "", item.name)


class Difference(NamedTuple):
    """What is new or other, and what is gone."""

    upserts: tuple[ApiObject, ...]
    removals: tuple[ObjectKey, ...]


class TrackedObjects:
    """Objects by key, and what each that has changed was at the last take(); None: not there.

    Changes that cancel each other out are none.
    """

    def __init__(self) -> None:
        self._objects: dict[ObjectKey, ApiObject] = {}
        self._before: dict[ObjectKey, ApiObject | None] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def keys(self) -> KeysView[ObjectKey]:
        return self._objects.keys()

    def get(self, key: ObjectKey) -> ApiObject | None:
        return self._objects.get(key)

    def set(self, key: ObjectKey, new: ApiObject | None) -> bool:
        """Add, replace or (None) remove an object. Whether that makes a difference."""
        old = self._objects.get(key)
        if old == new:
            return False
        if self._before.setdefault(key, old) == new:
            del self._before[key]
        if new is None:
            del self._objects[key]
        else:
            self._objects[key] = new
        return True

    def take(self) -> dict[ObjectKey, ApiObject | None]:
        """What the objects were that have changed since the last call."""
        before, self._before = self._before, {}
        return before

    def take_difference(self) -> Difference:
        """take(), as what the objects are now."""
        now = {key: self._objects.get(key) for key in self.take()}
        upserts = tuple(item for item in now.values() if item is not None)
        return Difference(upserts, tuple(key for key, item in now.items() if item is None))


class Conflict(NamedTuple):
    """A frontend key that two Services claim; the older one gets it."""

    key: FrontendKey
    winner: ServiceName
    loser: ServiceName


class _Claim(NamedTuple):
    """A Service that has a frontend key among its own; the oldest gets it."""

    created: str
    name: ServiceName


class Changes:
    """All known objects, and what changed between them since the last take().

    Only the Node called node_name counts; until it is known, the node is in no zone.
    masquerade_all: as of plan_service(). For one thread; but any may call service(), slices(),
    all_slices() and names().
    """

    def __init__(
        self, node_name: str, bound: tuple[Address, ...] = (), *, masquerade_all: bool = False
    ) -> None:
        """`bound`: addresses that come before those of the own Node."""
        self._masquerade_all = masquerade_all
        self._node_key = ObjectKey(Kind.NODE, "", node_name)
        self._bound = bound
        self._objects = TrackedObjects()
        self._service_cidrs: dict[str, ServiceCidr] = {}
        self._slices: dict[ServiceName, tuple[EndpointSlice, ...]] = {}
        self._claims: dict[FrontendKey, tuple[_Claim, ...]] = {}
        self._contested: set[FrontendKey] = set()

    @property
    def node(self) -> Node:
        """The own Node; one without fields until it is known."""
        found = self._objects.get(self._node_key)
        node = found if isinstance(found, Node) else Node(self._node_key.name)
        return replace(node, addresses=(*self._bound, *node.addresses))

    @property
    def service_ranges(self) -> tuple[str, ...]:
        """The CIDRs that ClusterIPs are taken from, sorted; empty if no ServiceCIDR is known."""
        found = {text for each in self._service_cidrs.values() for text in each.ranges}
        return tuple(sorted(found))

    def service(self, name: ServiceName) -> Service | None:
        found = self._objects.get(ObjectKey(Kind.SERVICE, *name))
        return found if isinstance(found, Service) else None

    def slices(self, name: ServiceName) -> tuple[EndpointSlice, ...]:
        """The slices of a Service, also of one that is not known."""
        return self._slices.get(name, ())

    def all_slices(self) -> list[tuple[ServiceName, tuple[EndpointSlice, ...]]]:
        """What slices() gives, for each Service that has some."""
        return list(self._slices.items())

    def names(self) -> ServiceNames:
        """The names of all Services, also of those without a port to serve."""
        return {
            ServiceName(*key[1:]) for key in list(self._objects.keys()) if key.kind is Kind.SERVICE
        }

    def set(self, item: ApiObject) -> None:
        """Add an object or replace the one of the same name."""
        key = key_of(item)
        if key.kind is not Kind.NODE or key == self._node_key:
            self._replace(key, item)

    def remove(self, key: ObjectKey) -> None:
        """Remove an object; an unknown one is no error."""
        self._replace(key, None)

    def take(self) -> ServiceNames:
        """The Services that must be planned again since the last call.

        Changes that cancelled each other out are not among them. A Service that is gone is named
        once; its plan is empty.
        """
        names: ServiceNames = set()
        for key, old in self._objects.take().items():
            names |= self._affected(old, self._objects.get(key))
        return names

    def plan(self, name: ServiceName) -> tuple[Frontend, ...]:
        """The frontends that the Service gets; empty when it is not known."""
        service = self.service(name)
        if service is None:
            return ()
        frontends = plan_service(
            service, self.slices(name), self.node, masquerade_all=self._masquerade_all
        )
        if not self._contested:
            return frontends
        return tuple(each for each in frontends if self._claims[each.key][0].name == name)

    def owner(self, key: FrontendKey) -> ServiceName | None:
        """The Service that gets a frontend: the oldest of those that claim it."""
        claims = self._claims.get(key)
        return claims[0].name if claims else None

    def health_check(self, name: ServiceName) -> HealthCheck | None:
        service = self.service(name)
        return health_check(service, self.slices(name), self.node) if service else None

    def conflicts(self) -> tuple[Conflict, ...]:
        """The claims of Services that do not get a frontend; of the same age, names decide."""
        return tuple(
            Conflict(key, self._claims[key][0].name, loser.name)
            for key in sorted(self._contested)
            for loser in self._claims[key][1:]
        )

    def _replace(self, key: ObjectKey, new: ApiObject | None) -> None:
        old = self._objects.get(key)
        if not self._objects.set(key, new):
            return
        # Other threads read slices meanwhile: the new one is there before the old one goes.
        if isinstance(new, EndpointSlice):
            self._link_slice(new)
        if isinstance(old, EndpointSlice):
            self._unlink_slice(old)
        self._unlink(old)
        self._link(new)

    def _link_slice(self, new: EndpointSlice) -> None:
        service = ServiceName(new.namespace, new.service)
        others = (piece for piece in self.slices(service) if piece.name != new.name)
        self._slices[service] = (*others, new)

    def _unlink_slice(self, old: EndpointSlice) -> None:
        service = ServiceName(old.namespace, old.service)
        rest = tuple(piece for piece in self._slices[service] if piece is not old)
        if rest:
            self._slices[service] = rest
        else:
            del self._slices[service]

    def _unlink(self, old: ApiObject | None) -> None:
        if isinstance(old, Service):
            for key in frontend_keys(old):
                others = (claim for claim in self._claims[key] if claim.name != old.name)
                self._claim(key, tuple(others))
        elif isinstance(old, ServiceCidr):
            del self._service_cidrs[old.name]

    def _link(self, new: ApiObject | None) -> None:
        if isinstance(new, Service):
            claim = _Claim(new.created, new.name)
            for key in frontend_keys(new):
                self._claim(key, tuple(sorted((*self._claims.get(key, ()), claim))))
        elif isinstance(new, ServiceCidr):
            self._service_cidrs[new.name] = new

    def _claim(self, key: FrontendKey, claims: tuple[_Claim, ...]) -> None:
        if claims:
            self._claims[key] = claims
        else:
            del self._claims[key]
        if len(claims) > 1:
            self._contested.add(key)
        else:
            self._contested.discard(key)

    def _affected(self, old: ApiObject | None, new: ApiObject | None) -> ServiceNames:
        if isinstance(old or new, Service):
            return self._affected_by_service(old, new)
        if isinstance(old or new, EndpointSlice):
            slices = (each for each in (old, new) if isinstance(each, EndpointSlice))
            names = (ServiceName(each.namespace, each.service) for each in slices)
            return {name for name in names if self.service(name)}
        return self.names() if _planning_fields(old) != _planning_fields(new) else set()

    def _affected_by_service(self, old: ApiObject | None, new: ApiObject | None) -> ServiceNames:
        services = [each for each in (old, new) if isinstance(each, Service)]
        names = {service.name for service in services}
        same_age = len({service.created for service in services}) == 1
        for key in _keys(old) ^ _keys(new) if same_age else _keys(old) | _keys(new):
            names.update(claim.name for claim in self._claims.get(key, ()))
        return names


def _keys(item: ApiObject | None) -> frozenset[FrontendKey]:
    return frontend_keys(item) if isinstance(item, Service) else frozenset()


def _planning_fields(item: ApiObject | None) -> tuple[object, ...]:
    """What plans depend on."""
    node = item if isinstance(item, Node) else Node("")
    return node.zone, node.primary
