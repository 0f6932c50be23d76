# SPDX-License-Identifier: Apache-2.0
"""Tracks objects as they come and go, and which Services must be planned again."""

from collections.abc import ItemsView, Iterator, Mapping
from dataclasses import replace
from itertools import chain

from ebpflb.model.address import Address, SocketAddress
from ebpflb.model.admission.addresses import NO_RULES, AddressRules, Admission
from ebpflb.model.admission.claims import Claim, Claims, Conflict, claims_of
from ebpflb.model.admission.labelled_pods import LabelledPods
from ebpflb.model.admission.problems import ServiceProblem, problems
from ebpflb.model.admission.tables import TableBudget, without_tables
from ebpflb.model.admission.without_effect import without_effect
from ebpflb.model.backup.backups import Backups
from ebpflb.model.dsr import Tunnels
from ebpflb.model.ejection import EjectionChange, Ejections, FailureCount, FailureCounts
from ebpflb.model.endpoint import EndpointSlice, endpoints_of
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.weighing import Weighing
from ebpflb.model.health_check import HealthCheck, health_check
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.objects.tracked import TrackedObjects
from ebpflb.model.plan import (
    NO_DEFAULTS,
    Defaults,
    Frontend,
    FrontendKey,
    place_of,
    plan_service,
    plan_withdrawn,
    with_weight,
)
from ebpflb.model.pod import Pod, PodNamespace, PodSockets
from ebpflb.model.selection import EVERYTHING, Selection
from ebpflb.model.service import (
    API_SERVER,
    Dsr,
    Service,
    ServiceCidr,
    ServiceName,
    ServicePort,
    ServicePortName,
)
from ebpflb.model.traffic_policy import categorize
from ebpflb.words.scheduler import Scheduler

ServiceNames = set[ServiceName]


class Changes:
    """All known objects, and what changed between them since the last take().

    The Node called node_name is this node; until it is known, the node is in no zone. The other
    Nodes matter only for DSR's tunnels, which are None while no Service can have DSR. selection:
    the Services to serve; another proxy serves the others. For one thread, except service(),
    slices(), all_slices(), pod_labels(), names() and objects(), which are thread-safe.
    """

    def __init__(
        self,
        node_name: str,
        bound: tuple[Address, ...] = (),
        defaults: Defaults = NO_DEFAULTS,
        selection: Selection = EVERYTHING,
        ejections: Ejections | None = None,
        rules: AddressRules = NO_RULES,
    ) -> None:
        """`bound`: addresses that come before those of the own Node."""
        self.ejections = ejections or Ejections()
        self._defaults = defaults
        self.selection = selection
        # Services that are not selected, and those whose selection or ejected endpoints changed
        # since the last take().
        self._left_out: ServiceNames = set()
        self._moved: ServiceNames = set()
        self._node_key = ObjectKey(Kind.NODE, "", node_name)
        self._bound = bound
        # This node's Node; has no fields until it is known.
        self.node = self._node(None)
        self._objects = TrackedObjects()
        self._service_cidrs: dict[str, ServiceCidr] = {}
        self._pods: dict[ObjectKey, Pod] = {}
        self._slices: dict[ServiceName, tuple[EndpointSlice, ...]] = {}
        self.admission = Admission(rules)
        self.backups = Backups(self.service, self.slices)
        self._labelled = LabelledPods(self._slices, self.service, self.backups.primaries)
        self._tables = TableBudget(defaults.scheduler, defaults.table_size)
        self._claims = Claims()
        self._watched: ServiceNames = set()
        # The Services of which open connections may be ended.
        self.with_ending: ServiceNames = set()
        self._problems: dict[ServiceName, tuple[str, ...]] = {}
        # Services whose weights have no effect.
        self._in_vain: ServiceNames = set()
        self.tunnels = Tunnels() if defaults.dsr is not Dsr.OFF else None

    @property
    def service_ranges(self) -> tuple[str, ...]:
        """The CIDRs whose addresses only we serve, sorted; empty if no ServiceCIDR is known."""
        if self.selection.is_limited:
            return ()
        found = {text for each in self._service_cidrs.values() for text in each.ranges}
        return tuple(sorted(found))

    @property
    def left_out(self) -> int:
        """How many Services are not selected."""
        return len(self._left_out)

    def why_left_out(self, service: Service) -> str:
        """Which selector does not match, as the end of a sentence; empty for a Service to serve."""
        return self.selection.why_not(service, self._namespace(service.name.namespace).labels)

    @property
    def pod_sockets(self) -> PodSockets:
        """A pod has opted out of socket LB by itself, or with its namespace."""
        return PodSockets.of(self._pods.values(), self._has_socket_lb)

    def node_pods(self) -> list[Pod]:
        """The pods of this node that the source reports."""
        return list(self._pods.values())

    def service(self, name: ServiceName) -> Service | None:
        found = self._objects.get(ObjectKey(Kind.SERVICE, *name))
        return found if isinstance(found, Service) else None

    def served(self, name: ServiceName) -> Service | None:
        """A Service without the addresses and the lookup tables that it does not get."""
        service = self.service(name)
        if service is None:
            return None
        service = self.admission.served(service)
        return without_tables(service) if name in self._tables.refused else service

    def slices(self, name: ServiceName) -> tuple[EndpointSlice, ...]:
        """The slices of a Service, even of one that is not known."""
        return self._slices.get(name, ())

    def all_slices(self) -> list[tuple[ServiceName, tuple[EndpointSlice, ...]]]:
        """slices() for each Service that has some."""
        return list(self._slices.items())

    def weighing(self, service: Service) -> Weighing:
        """What pods of other namespaces say does not count."""

        def labels_of(namespace: str, pod: str) -> PodLabels | None:
            return self.pod_labels(namespace, pod) if namespace == service.name.namespace else None

        return Weighing(service.annotated.weights, labels_of)

    def pod_labels(self, namespace: str, name: str) -> PodLabels | None:
        """Of a pod of any node; those of a namespace without weighted Services are not known."""
        found = self._objects.get(ObjectKey(Kind.POD_LABELS, namespace, name))
        return found if isinstance(found, PodLabels) else None

    def names(self) -> ServiceNames:
        """The names of all Services, including those without a port to serve."""
        return {item.name for item in self._objects.all() if isinstance(item, Service)}

    def objects(self) -> list[ApiObject]:
        """All objects but other Nodes."""
        return self._objects.all()

    def set(self, item: ApiObject) -> None:
        """Add an object, or replace the one with the same name."""
        self._replace(key_of(item), item)

    def remove(self, key: ObjectKey) -> None:
        """Remove an object; an unknown one is not an error."""
        self._replace(key, None)

    def take(self) -> ServiceNames:
        """The Services that must be planned again since the last call.

        Changes that cancelled each other out do not count. A Service that is gone is returned once;
        its plan is empty.
        """
        self._admit_again()
        self._moved |= self._tables.take_changed() | self.backups.take_moved()
        names, self._moved = self._moved, set()
        changed = self._objects.take()
        for key, old in changed.items():
            names |= self._affected(old, self._objects.get(key))
        pods = [key[1:] for key in changed if key.kind is Kind.POD_LABELS]
        names |= self._labelled.changed({pod: self.pod_labels(*pod) for pod in pods})
        return names | self.backups.primaries(names)

    def plan(self, name: ServiceName) -> tuple[Frontend, ...]:
        """The frontends that a Service gets, after take(); none if not known, or not selected."""
        service = self.served(name)
        if service is None or name in self._left_out:
            return ()
        lent = self.backups.lent(service)
        weighing, watch = self.weighing(service), self.ejections.watch
        frontends = lent.marked(
            plan_service(service, lent.slices, self.node, self._defaults, watch, weighing)
        )
        self._in_vain = self._in_vain - {name} | ({name} if weighing.is_in_vain else set())
        if not self._claims.has_conflicts:
            return frontends
        return tuple(each for each in frontends if self.owner(each.key) == name)

    def withdrawn(self, name: ServiceName) -> tuple[Frontend, ...]:
        """The frontends left for a Service that is not selected: see plan_withdrawn()."""
        service = self.service(name) if name in self._left_out else None
        return plan_withdrawn(service, self.backups.slices(service), self.node) if service else ()

    def owner(self, key: FrontendKey) -> ServiceName | None:
        """The Service that gets a frontend, of those that claim it."""
        return self._claims.owner(key)

    @property
    def has_ejection(self) -> bool:
        """Whether any Service has its endpoints ejected if connections to them fail."""
        return bool(self._watched)

    def observe_failures(self, readings: FailureCounts, now: float) -> list[EjectionChange]:
        """Eject endpoints and let them return. `now`: seconds, always by the same clock."""
        return [
            change
            for name in sorted({*readings, *self.ejections.ports})
            for change in self._observe_port(name, readings.get(name, {}), now)
        ]

    def _observe_port(
        self, name: ServicePortName, readings: Mapping[SocketAddress, FailureCount], now: float
    ) -> list[EjectionChange]:
        service = self.served(ServiceName(*name[:2]))
        ports = [port for port in service.ports if port.name == name] if service else []
        threshold = self.ejections.threshold(ports[0]) if ports else 0
        if service is None or not threshold:
            return self.ejections.forget(name)
        worst = max((reading.in_a_row for reading in readings.values()), default=0)
        if worst < threshold and name not in self.ejections.ports:
            return []
        scheduler = ports[0].annotated.scheduler or self._defaults.scheduler
        if ports[0].affinity_timeout or scheduler is Scheduler.SOURCE_HASH:
            # No other client gets this endpoint.
            readings = {at: each._replace(clients=each.regulars) for at, each in readings.items()}
        before = self.ejections.watch(ports[0])
        sets = [places for port in ports for places in self._usable(service, port)]
        changes = self.ejections.observe(name, threshold, sets, readings, now)
        if self.ejections.watch(ports[0]) != before:
            self._moved.add(ServiceName(*name[:2]))
        return changes

    def _usable(self, service: Service, port: ServicePort) -> Iterator[list[SocketAddress]]:
        endpoints = endpoints_of(port, self.backups.slices(service))
        sets, weighing = categorize(port, endpoints, self.node), self.weighing(service)
        for usable in (sets.cluster, sets.local):
            yield [place_of(each) for each in with_weight(usable, weighing)]

    def health_check(self, name: ServiceName) -> HealthCheck | None:
        """None if another proxy serves these Services, too: it answers for all of them."""
        if self.selection.is_shared or name in self._left_out:
            return None
        service = self.service(name)
        return health_check(service, self.backups.slices(service), self.node) if service else None

    def conflicts(self) -> tuple[Conflict, ...]:
        """Claims of Services to serve that lose to another one."""
        found = self._claims.conflicts()
        return tuple(each for each in found if each.loser not in self._left_out)

    def problems(self) -> tuple[ServiceProblem, ...]:
        """What the Services to serve ask for and do not get, sorted by Service."""
        invalid = self.backups.problems(self._labelled.problems(self._problems))
        refusals, refused = self.admission.refusals, self._tables.refused
        found = problems(invalid, self._in_vain, refusals, refused)
        return tuple(each for each in found if each.service not in self._left_out)

    def _replace(self, key: ObjectKey, new: ApiObject | None) -> None:
        if key.kind is Kind.NODE:
            self._tell_tunnels(key, new)
            if key != self._node_key:
                self.admission.set_node(key.name, new if isinstance(new, Node) else None)
                return
        old = self._objects.get(key)
        if not self._objects.set(key, new):
            return
        if key == self._node_key:
            self.node = self._node(new)
            self.admission.set_node(key.name, self.node)
        # Other threads read slices meanwhile, so add the new one before removing the old one.
        if isinstance(new, EndpointSlice):
            self._link_slice(new)
        if isinstance(old, EndpointSlice):
            self._unlink_slice(old)
        self._unlink(old)
        self._link(new)
        self._select(old or new)
        self._note_owners(key.kind)

    def _note_owners(self, changed: Kind) -> None:
        """Tell the admission whose addresses a Service may not have."""
        if changed is Kind.ENDPOINT_SLICE:
            self.admission.set_api_servers(self.slices(API_SERVER))
        elif changed is Kind.SERVICE_CIDR:
            ranges = (each.ranges for each in self._service_cidrs.values())
            self.admission.set_service_ranges(chain.from_iterable(ranges))

    def _admit_again(self) -> None:
        for name in self.admission.take_affected():
            if service := self.service(name):
                old = self.admission.served(service)
                self._claims.remove(old)
                self.admission.admit(service)
                self._claims.add(new := self.admission.served(service))
                self._moved |= self._competitors(old, new) | {name}

    def _node(self, found: ApiObject | None) -> Node:
        node = found if isinstance(found, Node) else Node(self._node_key.name)
        return replace(node, addresses=(*self._bound, *node.addresses))

    def _tell_tunnels(self, key: ObjectKey, new: ApiObject | None) -> None:
        node = new if isinstance(new, Node) else None
        if self.tunnels and key == self._node_key:
            self.tunnels.set_own(node)
        elif self.tunnels:
            self.tunnels.set_node(key.name, node)

    def _link_slice(self, new: EndpointSlice) -> None:
        name = ServiceName(new.namespace, new.service)
        known = self.service(name)
        # Share one copy of the name.
        service = known.name if known else name
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
            self._watched.discard(old.name)
            self.with_ending.discard(old.name)
            self._problems.pop(old.name, None)
            self._in_vain.discard(old.name)
            self._claims.remove(self.admission.served(old))
            self.admission.remove(old)
            self._tables.remove(old.name)
            self.backups.remove(old.name)
        elif isinstance(old, ServiceCidr):
            del self._service_cidrs[old.name]
        elif isinstance(old, Pod):
            del self._pods[key_of(old)]

    def _link(self, new: ApiObject | None) -> None:
        if isinstance(new, Service):
            if problems := (*new.problems, *without_effect(new, self._defaults)):
                self._problems[new.name] = problems
            if any(map(self.ejections.threshold, new.ports)):
                self._watched.add(new.name)
            if new.annotated.ending:
                self.with_ending.add(new.name)
            self.admission.add(new)
            self._tables.add(new)
            self.backups.add(new)
            self._claims.add(self.admission.served(new))
        elif isinstance(new, ServiceCidr):
            self._service_cidrs[new.name] = new
        elif isinstance(new, Pod):
            self._pods[key_of(new)] = new

    def _select(self, changed: ApiObject | None) -> None:
        if not self.selection.is_limited:
            return
        if isinstance(changed, Service):
            self._select_service(changed.name)
        elif isinstance(changed, PodNamespace):
            for name in self.names():
                if name.namespace == changed.name:
                    self._select_service(name)

    def _select_service(self, name: ServiceName) -> None:
        service = self.service(name)
        was_left_out = name in self._left_out
        if service and self.why_left_out(service):
            self._left_out.add(name)
        else:
            self._left_out.discard(name)
        if was_left_out is not (name in self._left_out):
            self._moved.add(name)

    def _namespace(self, name: str) -> PodNamespace:
        found = self._objects.get(ObjectKey(Kind.NAMESPACE, "", name))
        return found if isinstance(found, PodNamespace) else PodNamespace(name)

    def _has_socket_lb(self, pod: Pod) -> bool:
        if pod.socket_lb is not None:
            return pod.socket_lb
        return self._namespace(pod.namespace).socket_lb is not False

    def _affected(self, old: ApiObject | None, new: ApiObject | None) -> ServiceNames:
        if isinstance(old or new, Service):
            names = {each.name for each in (old, new) if isinstance(each, Service)}
            return names | self._competitors(old, new)
        if isinstance(old or new, EndpointSlice):
            slices = (each for each in (old, new) if isinstance(each, EndpointSlice))
            owners = {ServiceName(each.namespace, each.service) for each in slices}
            return set(filter(self.service, owners))
        return self.names() if _planning_fields(old) != _planning_fields(new) else set()

    def _competitors(self, old: ApiObject | None, new: ApiObject | None) -> ServiceNames:
        """The Services that ask for what only one of two versions of a Service asks for."""
        changed = _claims_of(old) ^ _claims_of(new)
        return {name for key, _ in changed for name in self._claims.claimants(key)}


def _claims_of(item: ApiObject | None) -> ItemsView[FrontendKey, Claim]:
    return (claims_of(item) if isinstance(item, Service) else {}).items()


def _planning_fields(item: ApiObject | None) -> tuple[object, ...]:
    """The fields that plans depend on."""
    node = item if isinstance(item, Node) else Node("")
    return node.zone, node.primary
