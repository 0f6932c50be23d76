# SPDX-License-Identifier: Apache-2.0
"""Labels of pods are watched where Services have weights, and only there."""

import threading
import tracemalloc
from collections.abc import Iterator

import pytest

from ebpflb.errors import SourceError
from ebpflb.model.changes import Changes
from ebpflb.model.extensions.pod_labels import PodLabels
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.source.api import ExpiredError, RefusedError
from ebpflb.source.extensions.pod_labels import LabelCache
from ebpflb.source.reflector import Reflector
from tests.builders import NODE, Manifest, service_manifest
from tests.unit.source.extensions.pod_server import Stage, labels_of, pod, weighted
from tests.unit.source.scripted import SECONDS, item

MAY_NOT = RefusedError("may not list pods")
EVEN = service_manifest()
BY_VERSION, BY_TRACK = "version=v1:90,version=v2:10", "track=canary:10,track=main:90"


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    monkeypatch.setattr("ebpflb.source.reflector._REFUSED_SECONDS", (0.0, 0.0))
    monkeypatch.setattr("ebpflb.source.reflector._UNREACHABLE_SECONDS", (0.0, 0.0))
    made = Stage()
    yield made
    made.source.stop()


def started(stage: Stage, *services: Manifest) -> Stage:
    stage.list_all(*services)
    stage.first()
    return stage


def test_the_first_event_has_the_labels_that_decide_and_no_others(stage: Stage):
    stage.server.pods["default"] = [pod(weight="3", version="v1", app="web"), pod("web-2", app="x")]
    stage.list_all(weighted(weights=BY_VERSION))
    first = stage.first()
    assert labels_of(list(first.upserts)) == [
        PodLabels("default", "web-1", (("version", "v1"),), 3),
        PodLabels("default", "web-2"),
    ]
    assert len(first.upserts) == 4


def test_pods_that_run_are_asked_for_and_of_them_the_metadata(stage: Stage):
    started(stage, weighted())
    listed, watched = stage.server.lists.get(), stage.server.next_watch().request
    for request in (listed, watched):
        assert request.path == "/api/v1/namespaces/default/pods"
        assert request.query["fieldSelector"] == "status.phase!=Succeeded,status.phase!=Failed"
    assert "as=PartialObjectMetadataList;" in listed.accept
    assert "as=PartialObjectMetadata;" in watched.accept
    assert watched.query["allowWatchBookmarks"] == "true"


def test_where_no_service_has_weights_nobody_asks_for_pods(stage: Stage):
    started(stage, EVEN)
    stage.change(service_manifest("shop"))
    assert stage.server.lists.empty()


def test_without_pods_nobody_asks_for_them():
    stage = Stage(with_pods=False)
    stage.list_all(weighted())
    stage.first()
    assert stage.server.lists.empty()


def test_pods_come_and_go(stage: Stage):
    started(stage, weighted(weights=BY_VERSION))
    watch = stage.server.next_watch()
    watch.send("ADDED", pod(version="v1"))
    stage.next()
    assert stage.labels() == [PodLabels("default", "web-1", (("version", "v1"),))]
    watch.send("BOOKMARK", pod())
    # Nothing that decides.
    watch.send("MODIFIED", pod(version="v1", app="other"))
    watch.send("MODIFIED", pod(version="v2"))
    assert stage.next().upserts == (PodLabels("default", "web-1", (("version", "v2"),)),)
    watch.send("DELETED", pod(version="v2"))
    assert stage.next().removals == (ObjectKey(Kind.POD_LABELS, "default", "web-1"),)


def test_a_service_that_gets_weights_has_its_pods_watched_until_it_loses_them(stage: Stage):
    started(stage, EVEN)
    stage.server.pods["default"] = [pod(weight="2")]
    stage.change(weighted())
    stage.until(lambda event: bool(labels_of(list(event.upserts))))
    assert stage.labels() == [PodLabels("default", "web-1", weight=2)]
    watch = stage.server.next_watch()
    stage.change(EVEN)
    watch.wait_for_end()
    stage.next()
    assert stage.labels() == []
    stage.change(weighted())
    stage.until(lambda event: bool(labels_of(list(event.upserts))))
    assert stage.labels() == [PodLabels("default", "web-1", weight=2)]


def test_the_last_of_a_namespace_ends_its_watch_and_no_other(stage: Stage):
    stage.server.pods.update({"default": [pod()], "shop": [pod("cart", "shop")]})
    services = weighted(), weighted("api"), weighted("cart", namespace="shop")
    started(stage, *services)
    watches = {
        each.namespace: each for each in (stage.server.next_watch(), stage.server.next_watch())
    }
    assert [each.name for each in stage.labels()] == ["web-1", "cart"]
    stage.change(services[0], deleted=True)
    stage.next()
    assert len(stage.labels()) == 2
    stage.source.replace(Kind.SERVICE, map(item, services[2:]))
    watches["default"].wait_for_end()
    stage.next()
    assert [each.name for each in stage.labels()] == ["cart"]
    watches["shop"].send("DELETED", pod("cart", "shop"))
    stage.next()
    assert stage.labels() == []


def test_other_labels_are_read_once_they_decide(stage: Stage):
    stage.server.pods["default"] = [pod(version="v1", track="main")]
    started(stage, weighted(weights=BY_VERSION))
    before = stage.server.next_watch()
    stage.change(weighted(weights=BY_TRACK))
    before.wait_for_end()
    stage.until(lambda event: bool(labels_of(list(event.upserts))))
    assert stage.labels() == [PodLabels("default", "web-1", (("track", "main"),))]
    stage.change(weighted("api", BY_VERSION))
    stage.until(lambda event: bool(labels_of(list(event.upserts))))
    assert stage.labels()[0].labels == (("track", "main"), ("version", "v1"))


def test_labels_stay_as_they_were_until_they_are_listed_with_other_keys(stage: Stage):
    stage.server.pods["default"] = [pod(version="v1"), pod("web-2")]
    started(stage, weighted(weights=BY_VERSION))
    stage.server.errors["default"] = SourceError("away")
    stage.change(weighted(weights=BY_TRACK))
    away = stage.until(lambda event: bool(event.errors))
    assert away.errors == {"api": "away"}
    assert [each.labels for each in stage.labels()] == [(("version", "v1"),), ()]
    stage.server.pods["default"] = [pod(track="main")]
    del stage.server.errors["default"]
    assert not stage.until(lambda event: bool(event.removals)).errors
    assert [each.labels for each in stage.labels()] == [(("track", "main"),)]


def test_a_list_for_other_keys_that_comes_late_is_not_taken(stage: Stage):
    started(stage, EVEN)
    gate = threading.Event()
    stage.server.gates.put(gate)
    stage.server.pods["default"] = [pod("old")]
    stage.change(weighted(weights=BY_VERSION))
    stage.server.lists.get(timeout=SECONDS)
    stage.server.pods["default"] = [pod("new", track="main")]
    stage.change(weighted(weights=BY_TRACK))
    stage.until(lambda event: bool(labels_of(list(event.upserts))))
    stage.server.next_watch()
    gate.set()
    stage.server.next_watch().wait_for_end()
    current = stage.source.current()
    assert current
    assert labels_of(current[1]) == [PodLabels("default", "new", (("track", "main"),))]


def test_a_history_that_is_gone_brings_the_difference_alone(stage: Stage):
    stage.server.pods["default"] = [pod(), pod("web-2"), pod("web-3")]
    started(stage, weighted())
    watch = stage.server.next_watch()
    stage.server.pods["default"] = [pod(), pod("web-2", weight="5")]
    watch.fail(ExpiredError("too old"))
    event = stage.next()
    assert event.upserts == (PodLabels("default", "web-2", weight=5),)
    assert event.removals == (ObjectKey(Kind.POD_LABELS, "default", "web-3"),)


def test_an_outage_changes_nothing_and_is_told(stage: Stage):
    stage.server.pods["default"] = [pod(weight="3")]
    started(stage, weighted())
    watch = stage.server.next_watch()
    watch.fail(SourceError("away"))
    told = stage.next()
    assert (told.errors, told.upserts, told.removals) == ({"api": "away"}, (), ())
    again = stage.server.next_watch()
    assert again.request.query["resourceVersion"] == "1"
    again.send("BOOKMARK", pod())
    assert stage.next().errors == {}
    assert stage.labels() == [PodLabels("default", "web-1", weight=3)]


def test_what_may_not_be_listed_is_told_once_and_holds_nothing_back(stage: Stage):
    stage.server.errors.update(dict.fromkeys(("default", "shop"), MAY_NOT))
    stage.list_all(weighted(), weighted("cart", namespace="shop"))
    first = stage.first()
    assert first.errors == {"api": "may not list pods"}
    assert len(first.upserts) == 3


def test_a_pod_that_cannot_be_read_stays_as_it_was(stage: Stage):
    started(stage, weighted())
    watch = stage.server.next_watch()
    watch.send("ADDED", pod(weight="3"))
    stage.next()
    broken = pod()
    broken["metadata"]["labels"] = 3
    watch.send("MODIFIED", broken)
    told = stage.next()
    line = "Pod default/web-1: metadata.labels: must be an object, not 3"
    assert told.errors == {ObjectKey(Kind.POD_LABELS, "default", "web-1"): line}
    assert stage.labels() == [PodLabels("default", "web-1", weight=3)]


def test_a_pod_takes_less_than_a_kilobyte_with_its_place_in_the_model():
    count = 1000
    labels = {"version": "v1", "app": "web", "pod-template-hash": "5d8f6c7b9d"}
    rest = {"uid": "313ed412-925c-496a-b6c9-c9417ed59311", "resourceVersion": "262"}
    manifests = [pod(f"web-5d8f6c7b9d-{number:05}", **labels) for number in range(count)]
    items = [item({**each, "metadata": {**each["metadata"], **rest}}) for each in manifests]
    cache, changes = LabelCache(), Changes(NODE)
    cache.keys = frozenset({"version"})
    cache.read(items[:1])
    tracemalloc.start()
    try:
        cache.replace(cache.read(items))
        for each in cache.take().upserts:
            changes.set(each)
        changes.take()
        assert tracemalloc.get_traced_memory()[0] < count * 1000
    finally:
        tracemalloc.stop()


def test_the_stop_ends_every_watch(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    started(stage, weighted(), weighted("cart", namespace="shop"))
    watches = stage.server.next_watch(), stage.server.next_watch()
    stage.source.stop()
    for watch in watches:
        watch.wait_for_end()
    begun: list[Reflector] = []
    monkeypatch.setattr(Reflector, "start", begun.append)
    stage.change(weighted("later", namespace="later"))
    assert begun == []


def test_the_state_to_keep_has_labels_and_is_unknown_until_they_are_listed(stage: Stage):
    stage.server.pods["default"] = [pod(weight="3")]
    stage.list_all(weighted())
    stage.first()
    current = stage.source.current()
    assert current
    assert labels_of(current[1]) == [PodLabels("default", "web-1", weight=3)]
    gate = threading.Event()
    stage.server.gates.put(gate)
    stage.change(weighted("cart", namespace="shop"))
    assert stage.source.current() is None
    gate.set()
    stage.server.next_watch()
    stage.server.next_watch()
    assert stage.source.current()


def test_kept_labels_are_served_until_the_server_has_others(stage: Stage):
    kept = started(Stage(), weighted(), EVEN | {"metadata": {"name": "even", "namespace": "x"}})
    objects = [
        *kept.changes.objects(),
        PodLabels("default", "web-1", weight=7),
        PodLabels("x", "y"),
    ]
    kept.source.stop()
    stage.server.errors["default"] = SourceError("away")
    stage.source.serve(objects, 5.0)
    served = stage.next()
    assert (served.initial, served.as_of, served.complete) == (True, 5.0, False)
    assert stage.labels() == [PodLabels("default", "web-1", weight=7)]
    stage.server.pods["default"] = [pod(weight="8")]
    del stage.server.errors["default"]
    stage.list_all(weighted())
    stage.until(lambda event: event.as_of is None and bool(labels_of(list(event.upserts))))
    assert stage.labels() == [PodLabels("default", "web-1", weight=8)]
