# SPDX-License-Identifier: Apache-2.0
"""What this node served at a moment, as a model that has one Service."""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from msgspec.json import encode

from ebpflb.errors import QueryError, SourceError
from ebpflb.from_json import JsonError
from ebpflb.model.address import WILDCARD, family_of, format_address
from ebpflb.model.backup.lending import backup_name
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import EjectionChange
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.plan import FrontendKey
from ebpflb.model.service import Service, ServiceName
from ebpflb.observe.served.kept_changes import KeptChanges
from ebpflb.observe.served.records import ServedRecord, read_name
from ebpflb.source.decode import decode

# What every plan depends on, and lines without an object.
_ALWAYS = (
    *(b'"kind":' + encode(kind) for kind in Kind if not kind.is_namespaced),
    *(b'"removed":', b'"ejection":'),
)
_POD_LABELS = b'"kind":' + encode(Kind.POD_LABELS)


class ServedThen(NamedTuple):
    """since: when that came into force, as the time of a Flow; not later than that."""

    changes: Changes
    since: str


class PastServices:
    """For any thread. Every method may raise QueryError."""

    def __init__(self, kept: KeptChanges, no_changes: Callable[[], Changes]) -> None:
        """`no_changes`: makes a model without objects, with the options of today."""
        self._kept = kept
        self._no_changes = no_changes

    def named(self, name: ServiceName, moment: int) -> ServedThen:
        """With that Service and its backup, if there were. `moment`: nanoseconds since 1970."""
        then = self._of(name, moment)
        service = then.objects.get(ObjectKey(Kind.SERVICE, *name))
        backup = backup_name(service) if isinstance(service, Service) else None
        return self._served(then, self._of(backup, moment)) if backup else self._served(then)

    def with_frontend(self, key: FrontendKey, moment: int) -> ServedThen:
        """With the Service that had a frontend, or else those that had its address."""
        address = encode(format_address(key.address))
        candidates = self._served(self._read(moment, [address])).changes
        if not candidates.owner(key):
            needles = [b'"nodePort":' + encode(key.port)]
            by_port = self._served(self._read(moment, needles)).changes
            if key.address in by_port.node.addresses:
                candidates = by_port
                key = key._replace(address=WILDCARD[family_of(key.address)])
        owner = candidates.owner(key)
        return self.named(owner, moment) if owner else ServedThen(candidates, "")

    def _of(self, name: ServiceName, moment: int) -> "_Then":
        return self._read(moment, [encode(name.name), encode(name.namespace)], name)

    def _read(
        self, moment: int, needles: Sequence[bytes], name: ServiceName | None = None
    ) -> "_Then":
        """`needles`: each object that matters has all. `name`: of the only Service."""
        then = _Then(needles, name, self._no_changes().selection.label_keys)
        then.apply(self._kept.records(moment, then.mentions))
        return then

    def _served(self, *parts: "_Then") -> ServedThen:
        """All of them together."""
        changes = self._no_changes()
        for then in parts:
            for item in then.objects.values():
                changes.set(item)
            for change in then.ejections:
                changes.ejections.recall(change)
        changes.take()
        return ServedThen(changes, max(then.since for then in parts))


class _Then:
    """What records come to, as one after the other is applied."""

    def __init__(
        self, needles: Sequence[bytes], name: ServiceName | None, label_keys: Collection[str]
    ) -> None:
        self._needles = needles
        # Of objects that matter, or did.
        self._names: set[str] = set()
        self._name = name
        # On each line with the labels of a pod that may be the Service's.
        self._pods = (_POD_LABELS, b'"namespace":' + encode(name.namespace)) if name else ()
        self._label_keys = label_keys
        self.objects: dict[ObjectKey, ApiObject] = {}
        self.ejections: list[EjectionChange] = []
        self.since = ""

    def mentions(self, line: bytes) -> bool:
        """Whether the line may matter, after those before it were applied."""
        return (
            all(each in line for each in self._needles)
            or any(each in line for each in _ALWAYS)
            or (bool(self._pods) and all(each in line for each in self._pods))
            or (bool(self._names) and read_name(line) in self._names)
        )

    def apply(self, records: Iterable[ServedRecord]) -> None:
        for record in records:
            if self._take(record):
                self.since = record.time

    def _take(self, record: ServedRecord) -> bool:
        """Whether it is about the Service."""
        if record.removed:
            gone = self.objects.pop(ObjectKey(*record.removed), None)
            return gone is not None and self._is_own(gone)
        if change := record.ejection:
            if ServiceName(*change.port[:2]) != self._name:
                return False
            self.ejections.append(change)
            return True
        item = self._decoded(bytes(record.object))
        return item is not None and self._take_object(item)

    def _take_object(self, item: ApiObject) -> bool:
        key = key_of(item)
        before = self.objects.pop(key, None)
        if self._may_be(item):
            self.objects[key] = item
            self._names.add(key.name)
        return any(each is not None and self._is_own(each) for each in (before, item))

    def _decoded(self, document: bytes) -> ApiObject | None:
        try:
            return decode(document, self._label_keys) if document else None
        except (SourceError, JsonError) as error:
            raise QueryError(f"what was served then cannot be read: {error}") from error

    def _may_be(self, item: ApiObject) -> bool:
        service = _service(item)
        return service is None or self._name in (None, service)

    def _is_own(self, item: ApiObject) -> bool:
        return _service(item) is not None and self._may_be(item)


def _service(item: ApiObject) -> ServiceName | None:
    """None for what is of no Service."""
    if isinstance(item, Service):
        return item.name
    if isinstance(item, EndpointSlice):
        return ServiceName(item.namespace, item.service)
    return None
