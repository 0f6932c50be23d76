# SPDX-License-Identifier: Apache-2.0
"""Where objects come from: manifests, or an API server, whose users get events."""

from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import yaml

from ebpflb.agent.sources import ApiServerSource, ManifestSource, selection_of, source_of
from ebpflb.config.settings import Settings, load_settings
from ebpflb.dataplane.load import compile_cache
from ebpflb.errors import ConfigError
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.source.api import Api, ApiRequest
from ebpflb.source.api_objects import Item, items_of
from ebpflb.source.api_types import ListMetadata
from ebpflb.source.interface import Announcement, SourceEvent
from ebpflb.source.kubernetes_events import Announcer
from ebpflb.source.last_state import LastState
from ebpflb.source.reflector import Reflector
from ebpflb.source.state_file import StateFile
from tests.builders import NODE, service, service_manifest, write_manifests

SECONDS = 60
URL = "http://127.0.0.1:1"
NOTHING = Announcement(ObjectKey(Kind.NODE, "", NODE), "Nothing", "")


@pytest.fixture
def settings(tmp_path: Path) -> Callable[..., Settings]:
    def load(**flags: Any) -> Settings:
        given = {"node-name": NODE, "cgroup-root": str(tmp_path), **flags}
        return load_settings(given, {})

    return load


def test_manifests_are_read_and_watched(settings: Callable[..., Settings], tmp_path: Path):
    path = write_manifests(tmp_path / "web.yaml", service_manifest())
    origin = source_of(settings(manifests=str(path)))
    assert isinstance(origin, ManifestSource)
    assert str(origin) == str(path)
    events: Queue[SourceEvent] = Queue()
    origin.start(events.put)
    assert events.get(timeout=SECONDS).upserts == (service(),)
    origin.announce(NOTHING)
    origin.stop()


def test_manifests_may_be_stopped_before_they_are_read(settings: Callable[..., Settings]):
    source_of(settings(manifests="/no/manifests")).stop()


def test_without_manifests_the_api_server_is_asked(settings: Callable[..., Settings]):
    origin = source_of(settings(master=URL))
    assert isinstance(origin, ApiServerSource)
    assert str(origin) == URL
    events: Queue[SourceEvent] = Queue()
    origin.start(events.put)
    error = events.get(timeout=SECONDS).errors["api"]
    assert error == f"cannot reach the API server at {URL}: Connection refused"
    origin.announce(NOTHING)
    origin.stop()


def test_who_may_not_mark_its_sockets_reaches_the_api_server_anyway(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
):
    def forbid(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr("socket.socket.setsockopt", forbid)
    origin = source_of(settings(master=URL))
    monkeypatch.undo()
    events: Queue[SourceEvent] = Queue()
    origin.start(events.put)
    assert "Connection refused" in events.get(timeout=SECONDS).errors["api"]
    origin.stop()


@pytest.mark.parametrize(("dsr", "is_for_all"), [("off", False), ("annotated", True)])
def test_all_nodes_are_read_where_packets_may_go_to_them(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, dsr: str, is_for_all: bool
):
    asked: Queue[ApiRequest] = Queue()

    def items(_: Api, request: ApiRequest) -> Generator[Item, None, ListMetadata]:
        if request.resource == "nodes":
            asked.put(request)
        return (yield from items_of(b'{"items": []}'))

    monkeypatch.setattr(Api, "items", items)
    origin = source_of(settings(master=URL, dsr=dsr))
    origin.start(lambda _: None)
    query = asked.get(timeout=SECONDS).query
    origin.stop()
    assert ("fieldSelector" not in query) is is_for_all


def test_an_agent_that_starts_says_so_at_its_node(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
):
    posted: Queue[Any] = Queue()
    monkeypatch.setattr(Api, "post", lambda _, request: posted.put(request))
    origin = source_of(settings(master=URL))
    origin.start(lambda _: None)
    body = posted.get(timeout=SECONDS).body
    origin.stop()
    assert (body["reason"], body["note"], body["type"]) == (
        "Starting",
        "ebpflb is starting",
        "Normal",
    )
    assert body["regarding"]["name"] == NODE


@pytest.mark.parametrize("wanted", [True, False])
def test_pods_are_read_and_events_created_only_where_they_are_wanted(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch, wanted: bool
):
    listed, announced = [], []

    class Noted(Reflector):
        def start(self) -> None:
            listed.append(self._resource.name)

    monkeypatch.setattr("ebpflb.source.kubernetes.Reflector", Noted)
    monkeypatch.setattr(Announcer, "announce", lambda _, what: announced.append(what.reason))
    origin = source_of(settings(master=URL, **{"watch-pods": wanted, "events": wanted}))
    origin.start(lambda _: None)
    origin.stop()
    assert len(listed) == 5 + wanted
    assert ("pods" in listed) is wanted
    assert announced == (["Starting"] if wanted else [])


def test_the_kubeconfig_says_where_the_api_server_is(
    settings: Callable[..., Settings], tmp_path: Path
):
    path = tmp_path / "kubeconfig"
    content = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": URL}}],
        "users": [{"name": "u", "user": {}}],
    }
    path.write_text(yaml.safe_dump(content))
    assert str(source_of(settings(kubeconfig=str(path)))) == URL


Kept = tuple[Path, float, bool]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Kept]:
    """The request: a file, the maximum age of the state, and whether it may be served."""
    found: list[Kept] = []

    def note(_: object, source: object, file: StateFile, most: float, *, may_serve: bool) -> None:
        found.append((file.path, most, may_serve))

    monkeypatch.setattr(LastState, "__init__", note)
    for method in ("start", "stop"):
        monkeypatch.setattr(LastState, method, lambda _: None)
    monkeypatch.setattr(Reflector, "start", lambda _: None)
    return found


def test_each_agent_keeps_a_state_of_its_own_or_none(
    settings: Callable[..., Settings], kept: list[Kept], tmp_path: Path
):
    pinned = tmp_path / "pinned"
    (pinned / "1-1/complete").mkdir(parents=True)
    for options in (
        {"bpffs-root": str(tmp_path / "fresh")},
        {"bpffs-root": str(pinned), "state-cache-max-age": "5m"},
        {"state-cache-max-age": "0"},
    ):
        origin = source_of(settings(master=URL, **options))
        origin.start(print)
        origin.stop()
    (fresh, *of_fresh), (other, *of_pinned) = kept
    assert (of_fresh, of_pinned) == ([3600, True], [300, False])
    assert {fresh.parent, other.parent} == {compile_cache.DIRECTORY}
    assert fresh != other


def test_neither_manifests_nor_an_api_server_is_a_wrong_setting(
    settings: Callable[..., Settings], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="not in a pod, and no --kubeconfig"):
        source_of(settings())


def test_only_labels_that_decide_are_read(settings: Callable[..., Settings], tmp_path: Path):
    labels = {"canary": "yes", "app": "web"}
    path = write_manifests(tmp_path / "web.yaml", service_manifest(labels=labels))
    given = {"service-selector": "canary", "namespace-selector": "team=a"}
    chosen = settings(manifests=str(path), **given)
    assert selection_of(chosen).options == given
    origin = source_of(chosen)
    events: Queue[SourceEvent] = Queue()
    origin.start(events.put)
    assert events.get(timeout=SECONDS).upserts == (replace(service(), labels=(("canary", "yes"),)),)
    origin.stop()
