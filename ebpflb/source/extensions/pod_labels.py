# SPDX-License-Identifier: Apache-2.0
"""The labels of pods, listed and watched in the namespaces whose Services have weights."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.extensions.weights import Weights
from ebpflb.model.objects.kinds import ApiObject, Kind, ObjectKey, key_of
from ebpflb.model.objects.tracked import Difference
from ebpflb.model.service import Service
from ebpflb.source.api_objects import Item
from ebpflb.source.cache import Cache
from ebpflb.source.reflector import Reader, Reflector, Resource

Update = Callable[[Callable[[], object]], None]

# Those that have finished are no endpoints.
_RUNNING = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}


def weights_of(item: ApiObject | None) -> Weights | None:
    """Of a Service that has some."""
    return item.annotated.weights if isinstance(item, Service) else None


class PodLabelWatches:
    """One for each namespace, with the labels that its Services ask for.

    Every method is called by one thread at a time, as by `update`.
    """

    def __init__(self, api: Reader, update: Update) -> None:
        """`update`: calls what it gets, and then passes on what has changed."""
        self._api = api
        self._update = update
        self._watches: dict[str, _Watch] = {}
        # Of namespaces that are not watched any more, since the last take().
        self._gone: list[ObjectKey] = []

    @property
    def is_listing(self) -> bool:
        """Whether some namespace has neither been listed nor could not be."""
        return not all(watch.is_listed or watch.error for watch in self._watches.values())

    @property
    def error(self) -> str:
        """Why a namespace cannot be listed or watched, the first of them; empty if all can."""
        errors = (self._watches[name].error for name in sorted(self._watches))
        return next(filter(None, errors), "")

    @property
    def errors(self) -> Mapping[str | ObjectKey, str]:
        """Pods that cannot be read."""
        found: dict[str | ObjectKey, str] = {}
        for watch in self._watches.values():
            found.update(watch.cache.errors)
        return found

    def follow(self, services: Iterable[ApiObject]) -> None:
        """Watch what all these Services need, and nothing else."""
        wanted = _keys_by_namespace(services)
        for namespace in self._watches.keys() - wanted.keys():
            watch = self._watches.pop(namespace)
            watch.stop()
            self._gone += map(key_of, watch.cache.all())
        for namespace, keys in wanted.items():
            self._follow_namespace(namespace, frozenset(keys))

    def _follow_namespace(self, namespace: str, keys: frozenset[str]) -> None:
        old = self._watches.get(namespace)
        if old and old.cache.keys == keys:
            return
        # Until they are listed with other keys, labels stay as they were.
        cache = old.cache if old else LabelCache()
        if old:
            old.stop()
        cache.keys = keys
        self._watches[namespace] = _Watch(self._api, namespace, cache, self._update)
        self._watches[namespace].start()

    def assume(self, kept: Iterable[PodLabels]) -> list[PodLabels]:
        """As Cache.assume(); returns those in namespaces that are watched."""
        found: dict[str, list[PodLabels]] = {namespace: [] for namespace in self._watches}
        for item in kept:
            if item.namespace in found:
                found[item.namespace].append(item)
        for namespace, watch in self._watches.items():
            watch.cache.assume(found[namespace], is_listed=watch.is_listed)
        return [item for items in found.values() for item in items]

    def take(self) -> Difference:
        """What changed since the last call. Removals come first."""
        differences = [watch.cache.take() for watch in self._watches.values()]
        gone, self._gone = self._gone, []
        return Difference(
            tuple(item for each in differences for item in each.upserts),
            (*gone, *(key for each in differences for key in each.removals)),
        )

    def all(self) -> list[ApiObject]:
        """The current ones."""
        return [item for watch in self._watches.values() for item in watch.cache.all()]

    def stop(self) -> None:
        """`update` is not called after this."""
        for watch in self._watches.values():
            watch.stop()


def _keys_by_namespace(services: Iterable[ApiObject]) -> Mapping[str, set[str]]:
    """The keys of labels that decide about weights, where there are any weights."""
    found = defaultdict[str, set[str]](set)
    for item in services:
        if isinstance(item, Service) and (weights := weights_of(item)):
            found[item.name.namespace].update(share.key for share in weights.shares)
    return found


class LabelCache(Cache):
    """keys: of labels to keep."""

    def __init__(self) -> None:
        super().__init__(Kind.POD_LABELS)
        self.keys = frozenset[str]()

    def _decoded(self, item: Item) -> ApiObject | None:
        found = super()._decoded(item)
        return found.limited_to(self.keys) if isinstance(found, PodLabels) else found


class _Watch:
    """Of one namespace; a Follower."""

    def __init__(self, api: Reader, namespace: str, cache: LabelCache, update: Update) -> None:
        self.cache = cache
        self.is_listed = False
        self.error = ""
        self._update = update
        self._is_stopped = False
        path = f"/api/v1/namespaces/{namespace}/pods"
        resource = Resource(path, "pods", _RUNNING, metadata_only=True)
        self._reflector = Reflector(api, resource, self)

    def start(self) -> None:
        self._reflector.start()

    def stop(self) -> None:
        self._is_stopped = True
        self._reflector.stop()

    def replace(self, items: Iterator[Item]) -> None:
        listed = self.cache.read(items)

        def change() -> None:
            self.cache.replace(listed)
            self.is_listed = True

        self._change(change)

    def change(self, item: Item, *, deleted: bool) -> None:
        self._change(lambda: self.cache.change(item, deleted=deleted))

    def report(self, error: str) -> None:
        self._change(lambda: setattr(self, "error", error))

    def _change(self, change: Callable[[], object]) -> None:
        """Unless it was stopped meanwhile: another one may have the cache by now."""
        self._update(lambda: None if self._is_stopped else change())
