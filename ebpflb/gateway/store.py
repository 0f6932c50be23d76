# SPDX-License-Identifier: Apache-2.0
"""The objects of the API server that count for Gateways and ServiceImports, as they are now."""

import logging
import threading
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from ebpflb.from_json import JsonError, from_json
from ebpflb.gateway.policy.found import FoundObjects, Key
from ebpflb.gateway.policy.objects import (
    ApiItem,
    Gateway,
    GatewayClass,
    GatewayRoute,
    GivenNode,
    GivenService,
    GivenSlice,
    LabelledNamespace,
    ReferenceGrant,
    ServiceImport,
)
from ebpflb.gateway.policy.owned import SERVICE_LABEL
from ebpflb.log import fields
from ebpflb.source.api_objects import Item
from ebpflb.source.reflector import Reader, Reflector, Resource
from ebpflb.source.typed import FieldError, checked, quickly
from ebpflb.words.gateway import GROUP, IMPORT_LABEL, MULTICLUSTER, ROUTE_OF

_log = logging.getLogger("ebpflb.gateway")


class WatchedKind(NamedTuple):
    """A kind of objects. collection: the path of all; with namespace and name, of one."""

    resource: Resource
    type: type[ApiItem]

    def path(self, key: Key) -> str:
        """Of the objects of a namespace, and without one of the cluster; of one if it is named."""
        root, slash, plural = self.resource.path.rpartition("/")
        place = f"{root}/namespaces/{key[0]}{slash}{plural}" if key[0] else self.resource.path
        return f"{place}/{key[1]}" if key[1] else place


def _kind(api: str, plural: str, type_: type[ApiItem], **query: str) -> WatchedKind:
    group = api.split("/")[2] if api.startswith("/apis/") else ""
    name = f"{plural}.{group}" if group else plural
    return WatchedKind(Resource(f"{api}/{plural}", name, query), type_)


_GATEWAY_API = f"/apis/{GROUP}/v1"
_SLICES = "/apis/discovery.k8s.io/v1", "endpointslices", GivenSlice
KINDS = {
    "GatewayClass": _kind(_GATEWAY_API, "gatewayclasses", GatewayClass),
    "Gateway": _kind(_GATEWAY_API, "gateways", Gateway),
    "TCPRoute": _kind(_GATEWAY_API, "tcproutes", GatewayRoute),
    "UDPRoute": _kind(_GATEWAY_API, "udproutes", GatewayRoute),
    "ReferenceGrant": _kind(_GATEWAY_API, "referencegrants", ReferenceGrant),
    "Namespace": _kind("/api/v1", "namespaces", LabelledNamespace),
    "Node": _kind("/api/v1", "nodes", GivenNode),
    "Service": _kind("/api/v1", "services", GivenService),
    "EndpointSlice": _kind(*_SLICES, labelSelector=SERVICE_LABEL),
    "ServiceImport": _kind(f"/apis/{MULTICLUSTER}/v1beta1", "serviceimports", ServiceImport),
    "ImportedSlice": _kind(*_SLICES, labelSelector=IMPORT_LABEL),
}
_SHARED = frozenset({"Service", "EndpointSlice"})
_OF_IMPORTS = frozenset({"ServiceImport", "ImportedSlice"})
APIS = {"gateway": KINDS.keys() - _OF_IMPORTS, "multicluster": _SHARED | _OF_IMPORTS}
"""The kinds that count for the objects of an API."""


class ObjectStore:
    """Thread-safe. changed: set after each change. An unreadable object stays as it was."""

    def __init__(self, api: Reader, apis: Collection[str]) -> None:
        """`apis`: of APIS, those whose objects are to be served."""
        self.changed = threading.Event()
        self._apis = [APIS[each] for each in apis]
        self._lock = threading.Lock()
        self._objects: dict[str, dict[Key, Any]] = {}
        self._reflectors = [
            Reflector(api, each.resource, _StoreFollower(self, kind))
            for kind, each in KINDS.items()
            if any(kind in kinds for kinds in self._apis)
        ]

    def start(self) -> None:
        for each in self._reflectors:
            each.start()

    def stop(self) -> None:
        for each in self._reflectors:
            each.stop()

    def found(self) -> FoundObjects | None:
        """Of the APIs of which every kind was listed once; None without any.

        One whose definitions are not installed costs no other.
        """
        with self._lock:
            listed = [kinds for kinds in self._apis if kinds <= self._objects.keys()]
            if not listed:
                return None
            counting = frozenset[str]().union(*listed)
            known = {kind: dict(self._objects[kind]) if kind in counting else {} for kind in KINDS}
        return FoundObjects(
            classes=known["GatewayClass"],
            gateways=known["Gateway"],
            routes={kind: known[kind] for kind in ROUTE_OF.values()},
            grants=known["ReferenceGrant"],
            namespaces=known["Namespace"],
            services=known["Service"],
            slices=_by_label(known["EndpointSlice"], SERVICE_LABEL),
            nodes=known["Node"],
            imports=known["ServiceImport"],
            imported=_by_label(known["ImportedSlice"], IMPORT_LABEL),
        )

    def replace(self, kind: str, items: Iterator[Item]) -> None:
        """All objects of a kind were listed."""
        before = self._objects.get(kind, {})
        listed: dict[Key, Any] = {}
        for item in items:
            key = item.known.namespace, item.known.name
            if found := _read(kind, item) or before.get(key):
                listed[key] = found
        with self._lock:
            self._objects[kind] = listed
        self.changed.set()

    def change(self, kind: str, item: Item, *, deleted: bool) -> None:
        """One object of a kind has changed."""
        key = item.known.namespace, item.known.name
        found = None if deleted else _read(kind, item)
        with self._lock:
            if deleted:
                self._objects[kind].pop(key, None)
            elif found:
                self._objects[kind][key] = found
        self.changed.set()


def _read(kind: str, item: Item) -> ApiItem | None:
    found = quickly(item.raw, KINDS[kind].type)
    if found is None:
        name = f"{kind} {item.known.namespace}/{item.known.name}"
        _log.warning("cannot read", extra=fields(object=name, error=_problem(kind, item)))
    return found


def _problem(kind: str, item: Item) -> str:
    try:
        checked(from_json(bytes(item.raw)), KINDS[kind].type)
    except (JsonError, FieldError) as error:
        return str(error)
    return item.problem


def _by_label(slices: dict[Key, GivenSlice], label: str) -> dict[Key, Sequence[GivenSlice]]:
    found: defaultdict[Key, list[GivenSlice]] = defaultdict(list)
    for (namespace, _), each in sorted(slices.items()):
        found[namespace, (each.metadata.labels or {}).get(label, "")].append(each)
    return dict(found)


class _StoreFollower:
    def __init__(self, store: ObjectStore, kind: str) -> None:
        self._store = store
        self._kind = kind

    def replace(self, items: Iterator[Item]) -> None:
        self._store.replace(self._kind, items)

    def change(self, item: Item, *, deleted: bool) -> None:
        self._store.change(self._kind, item, deleted=deleted)

    def report(self, error: str) -> None:
        if error:
            _log.warning("cannot follow", extra=fields(kind=self._kind, error=error))
        else:
            _log.info("following again", extra=fields(kind=self._kind))
