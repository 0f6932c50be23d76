# SPDX-License-Identifier: Apache-2.0
"""The source that lists and watches what the API server has: Services and what goes with them."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from ebpflb.errors import SourceError
from ebpflb.model.changes import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.service import ServiceName
from ebpflb.source.decode import decode
from ebpflb.source.fields import Fields, metadata_of
from ebpflb.source.interface import SourceEvent, Trigger
from ebpflb.source.reflector import Reader, Reflector, Resource

_ANNOTATION = "endpoints.kubernetes.io/last-change-trigger-time"


def trigger_time(item: Fields) -> float | None:
    """In seconds since 1970; None where the slice does not tell, or not in RFC 3339."""
    text = metadata_of(item).annotations.get(_ANNOTATION)
    with suppress(ValueError):
        found = datetime.fromisoformat(str(text))
        return found.timestamp() if found.tzinfo else None
    return None


@dataclass(slots=True)
class Difference:
    """What is new; an object that cannot be read leaves the one that was read before."""

    upserts: list[ApiObject] = field(default_factory=list)
    removals: list[ObjectKey] = field(default_factory=list)
    triggers: list[Trigger] = field(default_factory=list)


class Cache:
    """The objects of one kind. errors: object -> one line, of those that cannot be read.

    Written by one thread; errors is replaced as a whole, for others to read.
    """

    def __init__(self, kind: Kind, api_version: str) -> None:
        self.errors: dict[str, str] = {}
        self._kind = kind
        self._type = {"kind": str(kind), "apiVersion": api_version}
        self._objects: dict[ObjectKey, ApiObject] = {}
        self._uids: dict[ObjectKey, str] = {}

    def __len__(self) -> int:
        return len(self._objects)

    def uid(self, key: ObjectKey) -> str:
        """The uid of an object, empty when it is not there."""
        return self._uids.get(key, "")

    def replace(self, pages: Iterable[list[Fields]]) -> Difference:
        """Everything there is. Nothing changes when `pages` raises."""
        difference = Difference()
        fresh = Cache(self._kind, self._type["apiVersion"])
        for page in pages:
            for item in page:
                key = self._key(item)
                fresh._keep(key, item, self._objects.get(key))
        for key in self._objects.keys() - fresh._objects.keys():
            self._remove(key, difference)
        for key, new in fresh._objects.items():
            if self._objects.get(key) != new:
                difference.upserts.append(new)
        self._objects, self._uids, self.errors = fresh._objects, fresh._uids, fresh.errors
        return difference

    def change(self, item: Fields, *, deleted: bool) -> Difference:
        """One object is new, other or gone."""
        difference = Difference()
        key = self._key(item)
        old = self._objects.get(key)
        if deleted:
            self._forget_error(key)
            self._remove(key, difference)
            return difference
        self._keep(key, item, old)
        new = self._objects.get(key)
        if new is None:
            self._remove(key, difference, old)
        elif new != old:
            difference.upserts.append(new)
            if (triggered := trigger_time(item)) is not None:
                _note_trigger(difference, new, triggered)
        return difference

    def _key(self, item: Fields) -> ObjectKey:
        metadata = metadata_of(item)
        namespace = metadata.namespace if self._kind.is_namespaced else ""
        return ObjectKey(self._kind, namespace, metadata.name)

    def _keep(self, key: ObjectKey, item: Fields, old: ApiObject | None) -> None:
        self._uids[key] = metadata_of(item).uid
        self._forget_error(key)
        try:
            found = decode({**item, **self._type})
        except SourceError as error:
            self.errors = {**self.errors, str(key): str(error)}
            found = old
        if found is None:
            self._objects.pop(key, None)
        else:
            self._objects[key_of(found)] = found

    def _forget_error(self, key: ObjectKey) -> None:
        if str(key) in self.errors:
            self.errors = {name: line for name, line in self.errors.items() if name != str(key)}

    def _remove(self, key: ObjectKey, difference: Difference, old: ApiObject | None = None) -> None:
        self._uids.pop(key, None)
        gone = self._objects.pop(key, None) or old
        if gone is not None:
            difference.removals.append(key)
            _note_trigger(difference, gone, None)


def _note_trigger(difference: Difference, item: ApiObject, time: float | None) -> None:
    if isinstance(item, EndpointSlice):
        name = ServiceName(item.namespace, item.service)
        difference.triggers.append(Trigger(name, item.family, time))


# The selectors are kube-proxy's: what they leave out does not even come here.
_SERVICES = Resource(
    "/api/v1/services",
    "services",
    {
        "labelSelector": "!service.kubernetes.io/service-proxy-name",
        "fieldSelector": "spec.clusterIP!=None",
    },
)
_SLICES = Resource(
    "/apis/discovery.k8s.io/v1/endpointslices",
    "endpointslices.discovery.k8s.io",
    {"labelSelector": "!service.kubernetes.io/headless"},
)
# Since Kubernetes 1.33.
_SERVICE_CIDRS = Resource(
    "/apis/networking.k8s.io/v1/servicecidrs",
    "servicecidrs.networking.k8s.io",
    {},
    is_optional=True,
)


class KubernetesSource:
    """Tells `emit` what the API server tells, from threads of its own.

    The first event comes when Services, slices and the Node were listed; until then it tells errors
    only. What cannot be reached or read stays as it was; the errors say so.
    """

    def __init__(self, api: Reader, node_name: str, emit: Callable[[SourceEvent], None]) -> None:
        self._node_key = ObjectKey(Kind.NODE, "", node_name)
        self._emit = emit
        self._lock = threading.Lock()
        self._caches = {
            Kind.SERVICE: Cache(Kind.SERVICE, "v1"),
            Kind.ENDPOINT_SLICE: Cache(Kind.ENDPOINT_SLICE, "discovery.k8s.io/v1"),
            Kind.NODE: Cache(Kind.NODE, "v1"),
            Kind.SERVICE_CIDR: Cache(Kind.SERVICE_CIDR, "networking.k8s.io/v1"),
        }
        self._unreachable: dict[Kind, str] = {}
        self._missing = self._caches.keys() - {Kind.SERVICE_CIDR}
        self._gathered = Difference()
        self._stopped = False
        node = Resource("/api/v1/nodes", "nodes", {"fieldSelector": f"metadata.name={node_name}"})
        resources = {
            Kind.SERVICE: _SERVICES,
            Kind.ENDPOINT_SLICE: _SLICES,
            Kind.NODE: node,
            Kind.SERVICE_CIDR: _SERVICE_CIDRS,
        }
        self._reflectors = [
            Reflector(api, resource, _Follower(self, kind)) for kind, resource in resources.items()
        ]

    def start(self) -> None:
        """Begin to list and watch."""
        for reflector in self._reflectors:
            reflector.start()

    def stop(self) -> None:
        """Tell nothing any more."""
        for reflector in self._reflectors:
            reflector.stop()
        with self._lock:
            self._stopped = True

    def uid(self, key: ObjectKey) -> str:
        """The uid of an object, empty when it is not known."""
        return self._caches[key.kind].uid(key)

    def replace(self, kind: Kind, pages: Iterator[list[Fields]]) -> None:
        """All objects of a kind were listed."""
        difference = self._caches[kind].replace(pages)
        with self._lock:
            is_first = kind in self._missing
            self._missing.discard(kind)
            self._gather(difference, initial=is_first and not self._missing)

    def change(self, kind: Kind, item: Fields, *, deleted: bool) -> None:
        """One object of a kind has changed."""
        difference = self._caches[kind].change(item, deleted=deleted)
        with self._lock:
            self._gather(difference, initial=False)

    def report(self, kind: Kind, error: str) -> None:
        """Whether a kind can be followed."""
        with self._lock:
            before = self._errors()
            self._unreachable[kind] = error
            if self._errors() != before:
                self._gather(Difference(), initial=False)

    def _gather(self, difference: Difference, *, initial: bool) -> None:
        gathered = self._gathered
        if gone := set(difference.removals):
            gathered.upserts = [each for each in gathered.upserts if key_of(each) not in gone]
        gathered.upserts += difference.upserts
        gathered.removals += difference.removals
        gathered.triggers += difference.triggers
        if initial and not self._caches[Kind.NODE]:
            gathered.removals.append(self._node_key)
        self._send(initial=initial)

    def _send(self, *, initial: bool) -> None:
        gathered = Difference()
        if not self._missing:
            gathered, self._gathered = self._gathered, gathered
        if not self._stopped:
            self._emit(
                SourceEvent(
                    upserts=tuple(gathered.upserts),
                    removals=tuple(gathered.removals),
                    errors=self._errors(),
                    initial=initial,
                    triggers=tuple(gathered.triggers),
                )
            )

    def _errors(self) -> dict[str, str]:
        errors: dict[str, str] = {}
        if lines := sorted({line for line in self._unreachable.values() if line}):
            errors["api"] = "; ".join(lines)
        for cache in self._caches.values():
            errors |= cache.errors
        if Kind.NODE not in self._missing and not self._caches[Kind.NODE]:
            name = self._node_key.name
            line = f"Node {name} does not exist: --node-name must name one"
            errors.setdefault(str(self._node_key), line)
        return errors


class _Follower:
    def __init__(self, source: KubernetesSource, kind: Kind) -> None:
        self._source = source
        self._kind = kind

    def replace(self, pages: Iterator[list[Fields]]) -> None:
        self._source.replace(self._kind, pages)

    def change(self, item: Fields, *, deleted: bool) -> None:
        self._source.change(self._kind, item, deleted=deleted)

    def report(self, error: str) -> None:
        self._source.report(self._kind, error)
