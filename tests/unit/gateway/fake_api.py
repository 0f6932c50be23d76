# SPDX-License-Identifier: Apache-2.0
"""An API server in memory: what is written is there, and a store learns of it at once."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from typing import Any

from ebpflb.gateway.policy.found import Key
from ebpflb.gateway.store import APIS, KINDS, ObjectStore
from ebpflb.source.api import ApiRequest, ConflictError, MissingError
from ebpflb.source.api_objects import item_of
from ebpflb.source.api_types import Fields
from tests.unit.gateway.world import Object

_NAMESPACED = re.compile(r"/namespaces/[^/]+(?=/)")


class FakeApi:
    """refusals: by the beginning of a path, what a write of it raises."""

    def __init__(self, *objects: Object) -> None:
        self.objects: dict[str, Object] = {}
        self.written: list[tuple[str, str]] = []
        self.refusals: dict[str, Exception] = {}
        self.on_write: Callable[[], None] = lambda: None
        self._version = 0
        self.store = ObjectStore(self, APIS)  # type: ignore[arg-type]
        for kind in KINDS:
            self.store.replace(kind, iter(()))
        for each in objects:
            self.set(each)

    def set(self, item: Object) -> None:
        """Somebody else writes an object."""
        key = item["metadata"]["namespace"], item["metadata"]["name"]
        made = {name: each for name, each in item.items() if name != "service"}
        if "service" in item:
            labels = {"kubernetes.io/service-name": item["service"]}
            made["metadata"] = {**item["metadata"], "labels": labels}
        self._keep(KINDS[item["kind"]].path(key), made)

    def remove(self, kind: str, key: Key) -> None:
        """Somebody else deletes one."""
        self._forget(KINDS[kind].path(key))

    def at(self, kind: str, name: str, namespace: str = "shop") -> Object:
        """KeyError."""
        return self.objects[KINDS[kind].path((namespace, name))]

    def names(self, kind: str) -> list[str]:
        return [each["metadata"]["name"] for each in self.objects.values() if each["kind"] == kind]

    def get(self, request: ApiRequest) -> Fields:
        if request.path not in self.objects:
            raise MissingError("not there")
        return self.objects[request.path]

    def post(self, request: ApiRequest) -> None:
        made = deepcopy(dict(request.body or {}))
        path = f"{request.path}/{made['metadata']['name']}"
        self._note("POST", path)
        if path in self.objects:
            raise ConflictError("there already")
        made["metadata"]["uid"] = f"uid-{path}"
        self._keep(path, made)

    def patch(self, request: ApiRequest) -> None:
        path = request.path.removesuffix("/status")
        self._note("PATCH", request.path)
        body = dict(request.body or {})
        before = self.objects.get(path)
        version = body.get("metadata", {}).get("resourceVersion")
        if before is None or version not in (None, before["metadata"]["resourceVersion"]):
            raise ConflictError("another one by now")
        self._keep(path, _merged(before, body))

    def delete(self, request: ApiRequest) -> None:
        self._note("DELETE", request.path)
        uid = dict(request.body or {})["preconditions"]["uid"]
        if self.objects[request.path]["metadata"]["uid"] != uid:
            raise ConflictError("another one by now")
        self._forget(request.path)

    def _note(self, method: str, path: str) -> None:
        for beginning, error in self.refusals.items():
            if path.startswith(beginning):
                raise error
        self.written.append((method, path))
        self.on_write()

    def _keep(self, path: str, item: Object) -> None:
        self._version += 1
        item["metadata"] = {**item["metadata"], "resourceVersion": str(self._version)}
        self.objects[path] = item
        self._tell(path, item, deleted=False)

    def _forget(self, path: str) -> None:
        self._tell(path, self.objects.pop(path), deleted=True)

    def _tell(self, path: str, item: Object, *, deleted: bool) -> None:
        collection = _NAMESPACED.sub("", path).rpartition("/")[0]
        for kind, each in KINDS.items():
            if each.resource.path == collection:
                found = item_of(json.dumps(item).encode())
                label = each.resource.query.get("labelSelector")
                labels = item["metadata"].get("labels")
                is_selected = not label or (isinstance(labels, dict) and label in labels)
                self.store.change(kind, found, deleted=deleted or not is_selected)


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7386."""
    if not isinstance(patch, dict):
        return patch
    found = dict(before) if isinstance(before, dict) else {}
    for name, each in patch.items():
        if each is None:
            found.pop(name, None)
        else:
            found[name] = _merged(found.get(name), each)
    return found
