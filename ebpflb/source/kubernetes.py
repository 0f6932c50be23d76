# SPDX-License-Identifier: Apache-2.0
"""The source that lists and watches Services, EndpointSlices, the Node and other objects."""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.selection import EVERYTHING, PROXY_LABEL, Selection
from ebpflb.source.api_objects import Item
from ebpflb.source.cache import Cache
from ebpflb.source.extensions.pod_labels import PodLabelWatches, weights_of
from ebpflb.source.interface import API, SourceEvent, Trigger
from ebpflb.source.reflector import Reader, Reflector, Resource
from ebpflb.source.what_counts import SERVICE_LABEL

# The selectors are kube-proxy's; the server does the filtering. Services also have PROXY_LABEL's.
_SERVICES = Resource(
    "/api/v1/services",
    "services",
    {"fieldSelector": "spec.clusterIP!=None"},
)
_SLICES = Resource(
    "/apis/discovery.k8s.io/v1/endpointslices",
    "endpointslices.discovery.k8s.io",
    # Those that name no Service, as others' controllers make them, are no proxy's matter either.
    {"labelSelector": f"!service.kubernetes.io/headless,{SERVICE_LABEL}"},
)
_NODES = Resource("/api/v1/nodes", "nodes", {})
_PODS = Resource("/api/v1/pods", "pods", {})
_NAMESPACES = Resource("/api/v1/namespaces", "namespaces", {})
# Since Kubernetes 1.33.
_SERVICE_CIDRS = Resource(
    "/apis/networking.k8s.io/v1/servicecidrs",
    "servicecidrs.networking.k8s.io",
    {},
    is_optional=True,
)


def _of_proxy(name: str) -> Resource:
    wanted = f"{PROXY_LABEL}={name}" if name else f"!{PROXY_LABEL}"
    return _SERVICES._replace(query={**_SERVICES.query, "labelSelector": wanted})


class KubernetesSource:
    """Calls emit() with what the API server sends, from its own threads.

    The first event with objects comes once Services, slices and the Node have been listed,
    Namespaces if selectors use their labels, and the pods of namespaces with weighted Services
    unless that fails; until then, events contain only errors. What cannot be reached or read stays
    as it was, and is listed in the errors.
    """

    def __init__(
        self,
        api: Reader,
        node_name: str,
        emit: Callable[[SourceEvent], None],
        selection: Selection = EVERYTHING,
        *,
        all_nodes: bool = False,
        with_pods: bool = True,
    ) -> None:
        """`all_nodes`: watch all Nodes, not only the one with that name.

        `with_pods`: watch that Node's pods, and the labels of pods by which Services have weights.
        """
        self._node_key = ObjectKey(Kind.NODE, "", node_name)
        self._emit = emit
        self._lock = threading.Lock()
        self._caches = {kind: Cache(kind, selection.label_keys) for kind in Kind}
        self._unreachable: dict[Kind, str] = {}
        self._required = {Kind.SERVICE, Kind.ENDPOINT_SLICE, Kind.NODE}
        if selection.namespaces.requirements:
            self._required.add(Kind.NAMESPACE)
        self._missing = set(self._required)
        self._listed: set[Kind] = set()
        self._triggers: list[Trigger] = []
        # The errors in the last event.
        self._told: Mapping[str | ObjectKey, str] = {}
        self._labels = PodLabelWatches(api, self._update)
        self._with_pods = with_pods
        # Whether the first event with objects was sent; one with kept ones does not count.
        self._begun = False
        self._stopped = False
        # How often objects have changed; and see SourceEvent.
        self._version = 0
        self._as_of: float | None = None
        own_node = {"fieldSelector": f"metadata.name={node_name}"}
        resources = {
            Kind.SERVICE: _of_proxy(selection.proxy_name),
            Kind.ENDPOINT_SLICE: _SLICES,
            Kind.NODE: _NODES if all_nodes else _NODES._replace(query=own_node),
            Kind.SERVICE_CIDR: _SERVICE_CIDRS,
            Kind.POD: _PODS._replace(query={"fieldSelector": f"spec.nodeName={node_name}"}),
            Kind.NAMESPACE: _NAMESPACES,
        }
        self._followed = [kind for kind in resources if with_pods or kind is not Kind.POD]
        self._reflectors = [
            Reflector(api, resources[kind], _Follower(self, kind)) for kind in self._followed
        ]

    def start(self) -> None:
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """emit() is not called after this."""
        for reflector in self._reflectors:
            reflector.stop()
        with self._lock:
            self._stopped = True
            self._labels.stop()

    def uid(self, key: ObjectKey) -> str:
        """Empty if the object is not known."""
        return self._caches[key.kind].uid(key)

    @property
    def is_listing(self) -> bool:
        """Whether what the first event needs has not been listed yet."""
        return not self._begun

    @property
    def is_failing(self) -> bool:
        """Whether some of that could not be listed when it was last tried."""
        with self._lock:
            return any(self._unreachable.get(kind) for kind in self._missing)

    def current(self) -> tuple[int, list[ApiObject]] | None:
        """What the API server has, and a number that is another one after each change.

        None if that is not known.
        """
        with self._lock:
            is_unknown = not self._begun or self._labels.is_listing
            if is_unknown or any(self._unreachable.get(kind) for kind in self._required):
                return None
            found = [item for cache in self._caches.values() for item in cache.all()]
            return self._version, found + self._labels.all()

    def serve(self, kept: Iterable[ApiObject], as_of: float) -> None:
        """Emit what the API server had at that time, unless it has answered by now."""
        kept = list(kept)
        by_kind: dict[Kind, list[ApiObject]] = {kind: [] for kind in self._followed}
        for item in kept:
            if (kind := key_of(item).kind) in by_kind:
                by_kind[kind].append(item)
        with self._lock:
            if self._stopped or self._begun:
                return
            for kind, items in by_kind.items():
                self._caches[kind].assume(items, is_listed=kind in self._listed)
            self._as_of = as_of
            self._follow_labels()
            labels = self._labels.assume(item for item in kept if isinstance(item, PodLabels))
            upserts = (*(item for items in by_kind.values() for item in items), *labels)
            self._told = self._errors()
            self._emit(
                SourceEvent(upserts, (), self._told, initial=True, complete=False, as_of=as_of)
            )

    def replace(self, kind: Kind, items: Iterator[Item]) -> None:
        """All objects of a kind were listed."""
        # Without the lock: reading them waits for the server. No other thread changes this kind.
        listed = self._caches[kind].read(items)
        with self._lock:
            self._missing.discard(kind)
            self._listed.add(kind)
            self._triggers += self._caches[kind].replace(listed)
            if kind is Kind.SERVICE:
                self._follow_labels()
            self._send()

    def change(self, kind: Kind, item: Item, *, deleted: bool) -> None:
        """One object of a kind has changed."""
        with self._lock:
            cache = self._caches[kind]
            key = cache.key(item)
            before = weights_of(cache.get(key))
            self._triggers += cache.change(item, deleted=deleted)
            if weights_of(cache.get(key)) != before:
                self._follow_labels()
            self._send()

    def report(self, kind: Kind, error: str) -> None:
        """Why a kind cannot be listed or watched; empty once it can again."""
        with self._lock:
            before = self._errors()
            self._unreachable[kind] = error
            if self._errors() != before:
                self._send()

    def _update(self, change: Callable[[], object]) -> None:
        with self._lock:
            change()
            self._send()

    def _follow_labels(self) -> None:
        if self._with_pods and not self._stopped:
            self._labels.follow(self._caches[Kind.SERVICE].all())

    @property
    def _is_waiting(self) -> bool:
        return not self._begun and bool(self._missing or self._labels.is_listing)

    def _send(self) -> None:
        """Emit the changes, if any; until everything was listed, only errors."""
        if self._stopped:
            return
        is_waiting = self._is_waiting
        initial = not (is_waiting or self._begun)
        self._begun |= initial
        differences = [] if is_waiting else [each.take() for each in self._caches.values()]
        if not is_waiting:
            differences.append(self._labels.take())
        removals = [key for each in differences for key in each.removals]
        if initial and self._lacks_node() and self._node_key not in removals:
            removals.append(self._node_key)
        triggers: list[Trigger] = []
        if not is_waiting:
            triggers, self._triggers = self._triggers, triggers
            self._as_of = None
        event = SourceEvent(
            upserts=tuple(item for each in differences for item in each.upserts),
            removals=tuple(removals),
            errors=self._errors(),
            initial=initial,
            triggers=tuple(triggers),
            as_of=self._as_of,
        )
        self._version += bool(event.upserts or removals)
        if self._says_something(event) or is_waiting:
            self._emit(event)

    def _says_something(self, event: SourceEvent) -> bool:
        """False if only unused fields have changed, as with the heartbeats of Nodes."""
        told, self._told = self._told, event.errors
        if event.initial:
            return True
        return bool(event.upserts or event.removals or event.triggers) or event.errors != told

    def _errors(self) -> dict[str | ObjectKey, str]:
        errors: dict[str | ObjectKey, str] = {}
        if lines := sorted({*self._unreachable.values(), self._labels.error} - {""}):
            errors[API] = "; ".join(lines)
        for cache in self._caches.values():
            errors.update(cache.errors)
        errors.update(self._labels.errors)
        if self._node_key not in errors and self._lacks_node():
            name = self._node_key.name
            errors[str(self._node_key)] = f"Node {name} does not exist: --node-name must name one"
        return errors

    def _lacks_node(self) -> bool:
        return Kind.NODE not in self._missing and self._node_key not in self._caches[Kind.NODE]


class _Follower:
    def __init__(self, source: KubernetesSource, kind: Kind) -> None:
        self._source = source
        self._kind = kind

    def replace(self, items: Iterator[Item]) -> None:
        self._source.replace(self._kind, items)

    def change(self, item: Item, *, deleted: bool) -> None:
        self._source.change(self._kind, item, deleted=deleted)

    def report(self, error: str) -> None:
        self._source.report(self._kind, error)
