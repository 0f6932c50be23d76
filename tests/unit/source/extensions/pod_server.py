# SPDX-License-Identifier: Apache-2.0
"""An API server that has pods, and a source whose other objects a test lists."""

import json
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue

from ebpflb.errors import SourceError
from ebpflb.model.changes import Changes
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.objects.kinds import ApiObject, Kind
from ebpflb.source.api import ApiRequest, WatchStream
from ebpflb.source.api_objects import Item, WatchEvent, event_of, item_of
from ebpflb.source.api_types import Fields, ListMetadata
from ebpflb.source.interface import SourceEvent
from ebpflb.source.kubernetes import KubernetesSource
from tests.builders import NODE, Manifest, node_manifest, service_manifest
from tests.unit.source.scripted import SECONDS, event, item

End = Exception | None
_MOST_EVENTS = 10_000
_Line = tuple[str, Manifest]


def pod(
    name: str = "web-1", namespace: str = "default", weight: str = "", **labels: str
) -> Manifest:
    """As the API server sends its metadata."""
    annotations = {"ebpflb.io/weight": weight} if weight else {}
    metadata = {"name": name, "namespace": namespace, "labels": labels, "annotations": annotations}
    return {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": metadata}


def weighted(name: str = "web", weights: str = "pods", namespace: str = "default") -> Manifest:
    """A Service; without weights if there are none."""
    manifest = service_manifest(name, namespace=namespace)
    manifest["metadata"]["annotations"] = {"ebpflb.io/weights": weights} if weights else {}
    return manifest


class PodServer:
    """A Reader. Each watch sends what the test puts into it, until that is cut."""

    def __init__(self) -> None:
        # By namespace; and what each list raises instead.
        self.pods = defaultdict[str, list[Manifest]](list)
        self.errors: dict[str, SourceError] = {}
        # What a list waits for before it is sent, one for each of the next.
        self.gates = SimpleQueue[threading.Event]()
        self.lists = SimpleQueue[ApiRequest]()
        self.watches = SimpleQueue["OpenWatch"]()

    def items(self, request: ApiRequest) -> Generator[Item, None, ListMetadata]:
        self.lists.put(request)
        namespace = _namespace(request)
        if error := self.errors.get(namespace):
            raise error
        found = list(self.pods[namespace])
        with suppress(Empty):
            self.gates.get_nowait().wait()
        yield from map(item, found)
        return ListMetadata("1")

    def watch(self, request: ApiRequest, silence: float) -> WatchStream:
        del silence
        made = OpenWatch(request)
        self.watches.put(made)
        return WatchStream(made.events(), made.cut)

    def next_watch(self) -> "OpenWatch":
        """The one that begins next."""
        return self.watches.get(timeout=SECONDS)


class OpenWatch:
    def __init__(self, request: ApiRequest) -> None:
        self.request = request
        self.namespace = _namespace(request)
        self._lines = SimpleQueue[_Line | End]()
        self._ended = SimpleQueue[bool]()

    def send(self, kind: str, what: Manifest) -> None:
        self._lines.put((kind, what))

    def fail(self, error: SourceError) -> None:
        self._lines.put(error)

    def cut(self) -> None:
        self._lines.put(None)

    def events(self) -> Iterator[WatchEvent]:
        try:
            while line := self._lines.get():
                if isinstance(line, Exception):
                    raise line
                yield event_of(json.dumps(event(*line)).encode())
        finally:
            self._ended.put(True)

    def wait_for_end(self) -> None:
        assert self._ended.get(timeout=SECONDS)


def _namespace(request: ApiRequest) -> str:
    *_, namespace, resource = request.path.split("/")
    assert resource == "pods"
    return namespace


class Stage:
    """The source, and a model that receives its events."""

    def __init__(self, *, with_pods: bool = True) -> None:
        self.server = PodServer()
        self.events = SimpleQueue[SourceEvent]()
        self.changes = Changes(NODE)
        self.source = KubernetesSource(self.server, NODE, self.events.put, with_pods=with_pods)

    def list_all(self, *services: Manifest) -> None:
        """Everything but pods."""
        self.source.replace(Kind.ENDPOINT_SLICE, iter(()))
        self.source.replace(Kind.NODE, map(item, [node_manifest()]))
        self.source.replace(Kind.SERVICE, map(item, services))

    def change(self, what: Fields, *, deleted: bool = False) -> None:
        """A Service."""
        self.source.change(Kind.SERVICE, item_of(json.dumps(what).encode()), deleted=deleted)

    def next(self) -> SourceEvent:
        """The next event, which the model has then."""
        found = self.events.get(timeout=SECONDS)
        for key in found.removals:
            self.changes.remove(key)
        for each in found.upserts:
            self.changes.set(each)
        return found

    def first(self) -> SourceEvent:
        """The first with objects."""
        return self.until(lambda event: event.initial)

    def until(self, is_wanted: Callable[[SourceEvent], bool]) -> SourceEvent:
        for _ in range(_MOST_EVENTS):
            if is_wanted(found := self.next()):
                return found
        raise AssertionError(f"not among {_MOST_EVENTS} events")

    def labels(self) -> list[PodLabels]:
        """Those that the model has, by namespace and name."""
        return labels_of(self.changes.objects())


def labels_of(objects: list[ApiObject]) -> list[PodLabels]:
    found = [each for each in objects if isinstance(each, PodLabels)]
    return sorted(found, key=lambda each: (each.namespace, each.name))
