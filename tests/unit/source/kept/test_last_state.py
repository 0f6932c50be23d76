# SPDX-License-Identifier: Apache-2.0
"""The state stored while the API server responds is served when it does not, and only then."""

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from logging.handlers import QueueHandler
from pathlib import Path
from queue import Empty, Queue

import pytest

from ebpflb.model.objects.kinds import ApiObject, Kind, key_of
from ebpflb.source import last_state
from ebpflb.source.interface import SourceEvent
from ebpflb.source.kubernetes import KubernetesSource
from ebpflb.source.last_state import LastState
from ebpflb.source.state_file import StateFile
from tests.builders import (
    NODE,
    Manifest,
    endpoint,
    endpoint_manifest,
    endpoint_slice,
    node,
    node_manifest,
    service,
    service_manifest,
    slice_manifest,
)
from tests.unit.source.scripted import SECONDS, Script, item

HOUR = 3600.0
KEPT: Sequence[ApiObject] = [
    service("web"),
    service("gone"),
    endpoint_slice("web-1", endpoint()),
    node(),
]
MOVED = slice_manifest(endpoints=[endpoint_manifest("10.1.0.2")])


class Stage:
    """A source that a test plays the API server for, and its last state."""

    def __init__(self, directory: Path) -> None:
        self.events: Queue[SourceEvent] = Queue()
        self.source = KubernetesSource(Script(), NODE, self.events.put)
        self.file = StateFile(directory / "state.gz", {"node": NODE})
        self._running: list[LastState] = []
        self._log: Queue[logging.LogRecord] = Queue()
        self.handler = QueueHandler(self._log)

    def begin(self, **options: bool) -> LastState:
        found = LastState(self.source, self.file, HOUR, patience=0, **options)
        self._running.append(found)
        found.start()
        return found

    def end(self) -> None:
        for each in self._running:
            each.stop()
        self.source.stop()

    def fail(self, kind: Kind = Kind.SERVICE, error: str = "away") -> None:
        self.source.report(kind, error)
        self.events.get(timeout=SECONDS)

    def list(self, kind: Kind, *items: Manifest) -> None:
        self.source.replace(kind, map(item, items))

    def list_all(self) -> None:
        self.list(Kind.SERVICE, service_manifest("web"), service_manifest("new"))
        self.list(Kind.ENDPOINT_SLICE, MOVED)
        self.list(Kind.NODE, node_manifest())

    def keep(self, *objects: ApiObject, age: float = 60.0) -> float:
        as_of = float(int(time.time() - age))
        self.file.write(objects or KEPT, as_of, lambda: None)
        return as_of

    def next(self) -> SourceEvent:
        return self.events.get(timeout=SECONDS)

    def said(self) -> str:
        return self._log.get(timeout=SECONDS).getMessage()

    def nothing_more(self) -> None:
        with pytest.raises(Empty):
            self.events.get_nowait()


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    """With a thread that looks without waiting."""
    monkeypatch.setattr(last_state, "_LOOK_SECONDS", 0.001)
    found = Stage(tmp_path / "cache")
    log = logging.getLogger("ebpflb.source")
    log.addHandler(found.handler)
    yield found
    found.end()
    log.removeHandler(found.handler)


def test_without_the_api_server_what_was_kept_is_served(stage: Stage):
    as_of = stage.keep()
    stage.fail()
    stage.begin()
    event = stage.next()
    assert set(event.upserts) == set(KEPT)
    assert (event.removals, event.errors) == ((), {"api": "away"})
    assert (event.initial, event.complete, event.as_of) == (True, False, as_of)
    assert stage.source.is_listing


def test_what_the_api_server_has_takes_its_place_as_one_change(stage: Stage):
    as_of = stage.keep()
    stage.fail()
    stage.begin()
    stage.next()
    stage.list(Kind.SERVICE, service_manifest("web"), service_manifest("new"))
    stage.list(Kind.ENDPOINT_SLICE, MOVED)
    for _ in range(2):
        early = stage.next()
        assert (early.upserts, early.removals, early.as_of) == ((), (), as_of)
    stage.list(Kind.NODE, node_manifest())
    event = stage.next()
    expected = {service("new"), endpoint_slice("web-1", endpoint("10.1.0.2"))}
    assert set(event.upserts) == expected
    assert event.removals == (key_of(service("gone")),)
    assert (event.initial, event.complete, event.as_of) == (True, True, None)


def test_what_was_listed_before_is_no_part_of_what_was_kept(stage: Stage):
    stage.keep()
    stage.list(Kind.SERVICE, service_manifest("new"))
    stage.next()
    stage.fail(Kind.ENDPOINT_SLICE)
    stage.begin()
    assert set(stage.next().upserts) == set(KEPT)
    stage.list(Kind.ENDPOINT_SLICE, slice_manifest())
    stage.next()
    stage.list(Kind.NODE, node_manifest())
    event = stage.next()
    assert event.upserts == (service("new"),)
    assert set(event.removals) == {key_of(service("web")), key_of(service("gone"))}


def test_kinds_that_come_later_stay_until_they_do(stage: Stage):
    from ebpflb.model.pod import Pod

    pod = Pod("default", "a")
    stage.keep(*KEPT, pod)
    stage.fail()
    stage.begin()
    assert pod in stage.next().upserts
    stage.list_all()
    last = [stage.next() for _ in range(3)][-1]
    assert key_of(pod) not in last.removals
    stage.list(Kind.POD)
    assert stage.next().removals == (key_of(pod),)


def test_the_own_node_that_is_gone_is_removed_once(stage: Stage):
    stage.keep()
    stage.fail()
    stage.begin()
    stage.next()
    stage.list(Kind.SERVICE, service_manifest("web"), service_manifest("gone"))
    stage.list(Kind.ENDPOINT_SLICE, slice_manifest())
    stage.list(Kind.NODE)
    last = [stage.next() for _ in range(3)][-1]
    assert last.removals == (key_of(node()),)


def test_a_list_that_only_takes_long_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    asked = threading.Semaphore(0)

    def looks_good(_: KubernetesSource) -> bool:
        asked.release()
        return False

    monkeypatch.setattr(KubernetesSource, "is_failing", property(looks_good))
    stage.keep()
    stage.begin()
    assert all(asked.acquire(timeout=SECONDS) for _ in range(3))
    stage.nothing_more()
    stage.list_all()
    last = [stage.next() for _ in range(3)][-1]
    assert last.initial
    assert last.as_of is None


def test_a_state_that_comes_too_late_is_not_served(stage: Stage):
    stage.list_all()
    before = stage.events.qsize()
    stage.source.serve(KEPT, 1.0)
    assert stage.events.qsize() == before


def test_where_something_serves_already_nothing_is_taken_from_the_file(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    stage.keep()
    stage.fail()
    asked = threading.Event()
    monkeypatch.setattr(last_state, "KEEP_SECONDS", 0.001)
    monkeypatch.setattr(stage.source, "current", asked.set)
    stage.begin(may_serve=False)
    assert asked.wait(SECONDS)
    stage.nothing_more()


def test_a_state_that_is_too_old_is_said_not_to_be_served(stage: Stage):
    stage.keep(age=HOUR + 10)
    stage.fail()
    last = stage.begin()
    said = stage.said()
    assert said.startswith("the API server does not answer, and no kept state is served: ")
    assert said.endswith("s old, and --state-cache-max-age is 3600 s")
    last.stop()
    stage.nothing_more()


def test_what_cannot_be_read_of_it_is_said_in_one_line(stage: Stage):
    bad = service("x" * 64)
    stage.keep(*KEPT, bad, bad)
    stage.fail()
    stage.begin()
    assert set(stage.next().upserts) == set(KEPT)
    assert stage.said() == "2 objects of the kept state cannot be read"


def test_what_the_api_server_has_is_kept_at_the_end(stage: Stage):
    last = stage.begin()
    stage.list_all()
    last.stop()
    found = stage.file.read(HOUR, time.time())
    expected = {
        *(service("web"), service("new"), node()),
        endpoint_slice("web-1", endpoint("10.1.0.2")),
    }
    assert set(found.objects) == expected


def test_what_was_only_kept_is_not_kept_again(stage: Stage):
    as_of = stage.keep()
    stage.fail()
    last = stage.begin()
    stage.next()
    last.stop()
    assert stage.file.read(HOUR, time.time()).as_of == as_of


def test_each_change_is_written_and_nothing_else(stage: Stage, monkeypatch: pytest.MonkeyPatch):
    written: Queue[float] = Queue()
    write, stamp = stage.file.write, stage.file.stamp

    def count_write(objects, as_of, pause):
        write(objects, as_of, pause)
        written.put(len(objects))

    stamped: Queue[float] = Queue()

    def count_stamp(as_of):
        stamp(as_of)
        stamped.put(as_of)

    monkeypatch.setattr(stage.file, "write", count_write)
    monkeypatch.setattr(stage.file, "stamp", count_stamp)
    monkeypatch.setattr(last_state, "KEEP_SECONDS", 0.001)
    monkeypatch.setattr(last_state, "_CPU_SHARE", 0)
    stage.list_all()
    last = stage.begin()
    assert written.get(timeout=SECONDS) == 4
    stamped.get(timeout=SECONDS)
    assert written.empty()
    stage.source.change(Kind.SERVICE, item(service_manifest("more")), deleted=False)
    assert written.get(timeout=SECONDS) == 5
    stage.file.path.unlink()
    assert written.get(timeout=SECONDS) == 5
    last.stop()


def test_while_the_api_server_is_away_the_file_grows_older(stage: Stage):
    stage.list_all()
    stage.begin().stop()
    as_of = stage.file.read(HOUR, time.time()).as_of
    stage.source.report(Kind.SERVICE, "away")
    stage.begin().stop()
    assert stage.file.read(HOUR, time.time()).as_of == as_of


def test_pods_that_may_not_be_listed_keep_nothing_else_from_being_kept(stage: Stage):
    stage.list_all()
    stage.source.report(Kind.POD, "may not list pods")
    stage.begin().stop()
    assert len(stage.file.read(HOUR, time.time()).objects) == 4


def test_a_directory_that_cannot_be_used_is_named(stage: Stage):
    stage.file.path.parent.mkdir(mode=0o700)
    stage.file.path.parent.chmod(0o777)
    stage.list_all()
    stage.begin().stop()
    assert stage.said() == (
        "cannot keep the state for a start without the API server: "
        f"{stage.file.path}: others may write there"
    )
