# SPDX-License-Identifier: Apache-2.0
"""One resource, listed and watched at a server that fails in every way."""

import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ebpflb.errors import SourceError
from ebpflb.source import reflector as module
from ebpflb.source.api import (
    ApiRequest,
    BrokenError,
    ExpiredError,
    MissingError,
    RefusedError,
    WatchStream,
)
from ebpflb.source.api_objects import Item, WatchEvent
from ebpflb.source.api_types import Fields
from ebpflb.source.reflector import SILENCE_SECONDS, Reflector, Resource
from tests.unit.source.scripted import SECONDS, Script, event, item, page

THINGS = Resource("/api/v1/things", "things.example.com", {"labelSelector": "!hidden"})
AWAY = SourceError("away")


class Notes:
    """A Follower. `said` is what it received, abbreviated; nothing counts once the script is
    over.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.threads: set[str] = set()
        self.over = threading.Event()

    def replace(self, items: Iterator[Item]) -> None:
        self._say(f"all: {' '.join(map(_name, items))}")

    def change(self, item: Item, *, deleted: bool) -> None:
        self._say(f"{'gone' if deleted else 'is'} {_name(item)}")

    def report(self, error: str) -> None:
        self._say(f"error: {error}" if error else "recovered")

    def _say(self, text: str) -> None:
        self.threads.add(threading.current_thread().name)
        if not self.over.is_set():
            self.said.append(text)


class Played:
    """What became of a script. waits: for how long the reflector would have waited."""

    def __init__(
        self, waits: list[float], answers: tuple[Any, ...], *, optional: bool = False
    ) -> None:
        self.waits = waits
        self.script = Script(*answers)
        self.notes = Notes()
        self.notes.over = self.script.over
        reflector = Reflector(self.script, THINGS._replace(is_optional=optional), self.notes)
        self.script.stop = reflector.stop
        reflector.start()
        assert self.script.over.wait(SECONDS)

    @property
    def said(self) -> list[str]:
        return self.notes.said

    @property
    def versions(self) -> list[str | None]:
        """From which version on each request asked to watch; None for a list."""
        return [query.get("resourceVersion") for query in self.script.queries]


Play = Callable[..., Played]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Decides how long each watch lasts: each look at the clock is so much later."""
    state = SimpleNamespace(now=0.0, step=60.0)

    def monotonic() -> float:
        state.now += state.step
        return float(state.now)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=monotonic))
    return state


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, clock: SimpleNamespace) -> Play:
    """Plays a script to its end, without waiting."""
    waits: list[float] = []

    class Hurry(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not self.is_set():
                waits.append(timeout or 0)
            return self.is_set()

    monkeypatch.setattr(module, "threading", SimpleNamespace(Event=Hurry, Thread=threading.Thread))
    return lambda *answers, **how: Played(waits, answers, **how)


def thing(name: str, version: str = "") -> Fields:
    return {"metadata": {"name": name, "resourceVersion": version}}


def _name(found: Item) -> str:
    return found.known.name


def test_everything_is_listed_by_pages_and_reported_at_once(play: Play):
    played = play(
        page(thing("a"), thing("b"), version="7", rest="token"),
        page(version="7", rest="token-2"),
        page(thing("c"), version="8"),
    )
    assert played.said == ["all: a b c"]
    first, second, third = played.script.queries
    assert first == {"labelSelector": "!hidden", "limit": "500"}
    assert second == {**first, "continue": "token"}
    assert third == {**first, "continue": "token-2"}
    assert set(played.script.paths) == {"/api/v1/things"}


def test_the_watch_asks_for_bookmarks_from_the_version_of_the_list_on(play: Play):
    played = play(page(version="7"), [])
    query = played.script.queries[1]
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {
        "labelSelector": "!hidden",
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": "7",
    }
    assert played.script.silences == [SILENCE_SECONDS]


def test_of_metadata_alone_lists_and_watches_ask_for_different_kinds():
    asked: list[str] = []

    class Asked(Script):
        def items(self, request: ApiRequest) -> Any:
            asked.append(request.accept)
            return super().items(request)

        def watch(self, request: ApiRequest, silence: float) -> WatchStream:
            asked.append(request.accept)
            return super().watch(request, silence)

    for metadata_only in (False, True):
        script = Asked(page(version="7"), [])
        reflector = Reflector(script, THINGS._replace(metadata_only=metadata_only), Notes())
        script.stop = reflector.stop
        reflector.start()
        assert script.over.wait(SECONDS)
    assert [each for each in asked if each != "application/json"] == [
        "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
        *2 * ["application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"],
    ]


def test_the_follower_is_called_from_one_thread_that_is_named_after_the_resource(play: Play):
    played = play(AWAY, page(version="7"), [event("ADDED", thing("a", "8"))])
    assert played.notes.threads == {"ebpflb-things"}


def test_events_are_reported_one_by_one(play: Play):
    played = play(
        page(thing("a"), version="7"),
        [
            event("ADDED", thing("b", "8")),
            event("MODIFIED", thing("a", "9")),
            event("DELETED", thing("b", "10")),
        ],
        [],
    )
    assert played.said == ["all: a", "is b", "is a", "gone b"]
    assert played.versions == [None, "7", "10"]


def test_a_bookmark_moves_the_version_and_is_nothing_to_tell(play: Play):
    bookmark = {"metadata": {"resourceVersion": "99"}}
    played = play(page(version="7"), [event("BOOKMARK", bookmark)], [])
    assert played.said == ["all: "]
    assert played.versions == [None, "7", "99"]


@pytest.mark.parametrize("odd", [{}, {"metadata": None}, {"metadata": {"resourceVersion": 8}}])
def test_a_bookmark_without_a_version_leaves_it_as_it_was(play: Play, odd: Fields):
    played = play(page(version="7"), [event("BOOKMARK", odd)], [])
    assert played.versions == [None, "7", "7"]


def test_an_ended_watch_goes_on_where_it_ended_without_a_wait(play: Play):
    played = play(page(version="7"), [event("ADDED", thing("a", "8"))], [])
    assert played.versions == [None, "7", "8"]
    assert played.waits == []


def test_a_server_that_ends_its_watches_at_once_is_not_asked_in_a_hurry(
    play: Play, clock: SimpleNamespace
):
    clock.step = 0.5
    assert play(page(version="7"), [], []).waits == [1.0, 1.0]


def test_a_broken_watch_goes_on_where_it_broke_and_is_no_error_yet(play: Play):
    broken = [event("ADDED", thing("a", "8")), BrokenError("reset")]
    played = play(page(version="7"), broken, [event("ADDED", thing("b", "9"))])
    assert played.said == ["all: ", "is a", "is b"]
    assert played.versions == [None, "7", "8"]
    assert len(played.waits) == 1


def test_a_list_that_fails_between_two_pages_reports_nothing_and_starts_over(play: Play):
    played = play(
        page(thing("a"), version="7", rest="token"),
        AWAY,
        page(thing("b"), version="9"),
        [],
    )
    assert played.said == ["error: away", "recovered", "all: b"]
    assert "continue" not in played.script.queries[2]
    assert played.versions == [None, None, None, "9"]


def test_a_list_whose_rest_has_expired_starts_over_and_is_no_error(play: Play):
    played = play(
        page(thing("a"), version="7", rest="token"),
        ExpiredError("things: the continue parameter is too old"),
        page(thing("a"), version="9"),
    )
    assert played.said == ["all: a"]
    assert "continue" not in played.script.queries[2]


EXPIRED = event("ERROR", {"kind": "Status", "code": 410, "message": "too old"})


@pytest.mark.parametrize("gone", [ExpiredError("too old"), [EXPIRED]], ids=["status", "event"])
def test_a_forgotten_version_leads_to_a_new_list_and_is_no_error(play: Play, gone: Any):
    played = play(page(thing("a"), version="7"), gone, page(thing("a"), version="50"), [])
    assert played.said == ["all: a", "all: a"]
    assert played.versions == [None, "7", None, "50"]
    assert len(played.waits) == 1


def test_another_error_in_a_watch_is_reported_and_the_watch_goes_on(play: Play):
    error = event("ERROR", {"kind": "Status", "code": 500, "message": "etcd is away"})
    played = play(page(version="7"), [event("ADDED", thing("a", "8")), error], [])
    line = "error: cannot watch things.example.com: etcd is away"
    assert played.said == ["all: ", "is a", line, "recovered"]
    assert played.versions == [None, "7", "8"]


def test_an_error_is_taken_back_once(play: Play):
    refused = RefusedError("may not list things")
    played = play(refused, refused, page(version="7"), [], [])
    line = "error: may not list things"
    assert played.said == [line, line, "recovered", "all: "]


def test_a_watch_that_cannot_begin_is_reported_until_it_does(play: Play):
    played = play(page(version="7"), AWAY, AWAY, [], [])
    assert played.said == ["all: ", "error: away", "error: away", "recovered"]
    assert played.versions == [None, "7", "7", "7", "7"]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ({"items": 3}, "cannot read things.example.com: items: must be a list"),
        (b'{"items": [}', "cannot read things.example.com: line 1, column 12: Expecting value"),
        (
            {"metadata": {"resourceVersion": 3}},
            "cannot read things.example.com: metadata.resourceVersion: must be text, not 3",
        ),
    ],
)
def test_an_odd_list_is_an_error_in_one_line(play: Play, answer: Any, text: str):
    assert play(answer, page(version="7")).said == [f"error: {text}", "recovered", "all: "]


BROKEN = b'{"type": "ADDED", "object": {"metadata": {"name": "b", "resourceVersion": "9"}, "a": ,}}'
LIST_WITH_BROKEN = (
    b'{"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "a"}, "x": NaN}]}'
)
NAMELESS = b'{"type": "DELETED", "object": {"metadata": {"a": ,}}}'
NO_JSON = b"<html>"


def test_an_object_that_is_no_json_is_known_by_its_name_and_the_version_goes_on(play: Play):
    played = play(LIST_WITH_BROKEN, [BROKEN, event("ADDED", thing("c", "10"))], [])
    assert played.said == ["all: a", "is b", "is c"]
    assert played.versions == [None, "7", "10"]


@pytest.mark.parametrize("odd", [NAMELESS, NO_JSON, event("ADDED", {})["object"]])
def test_after_some_unreadable_events_at_one_version_everything_is_listed_again(
    play: Play, odd: Any
):
    played = play(
        page(thing("a"), version="7"), [odd], [odd], [odd], page(thing("b"), version="9"), []
    )
    assert played.versions == [None, "7", "7", "7", None, "9"]
    assert [each.partition(":")[0] for each in played.said] == ["all", *["error"] * 3, *LISTED]
    assert played.waits[:3] >= [0.25, 0.5, 1]


LISTED = ["recovered", "all"]


def test_readable_again_is_only_said_when_something_was_read(play: Play):
    lively = [event("ADDED", thing("a", "8")), NO_JSON]
    played = play(page(version="7"), [NO_JSON], [NO_JSON], lively, [])
    error = "error: cannot read an event: line 1, column 1: Expecting '{'"
    assert played.said == ["all: ", error, error, "is a", "recovered", error, "recovered"]
    assert played.versions == [None, "7", "7", "7", "8"]


def test_an_endless_row_of_unreadable_events_does_not_end_in_endless_lists(play: Play):
    played = play(page(version="7"), *[[NO_JSON], [NO_JSON], [NO_JSON], page(version="7")] * 5)
    assert played.versions == [None, *["7", "7", "7", None] * 5]
    assert played.waits[-1] >= 15


@pytest.mark.parametrize("factor", [0.5, 1.0])
@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (AWAY, [0.1, 0.2, 0.4, 0.8, 1.5, 1.5]),
        (RefusedError("no"), [0.5, 1, 2, 4, 8, 16, 30, 30]),
    ],
    ids=["unreachable", "refused"],
)
def test_the_waits_double_up_to_a_bound_and_are_jittered(
    play: Play,
    monkeypatch: pytest.MonkeyPatch,
    factor: float,
    error: SourceError,
    waits: list[float],
):
    def uniform(low: float, high: float) -> float:
        assert (low, high) == (0.5, 1)
        return factor

    monkeypatch.setattr("random.uniform", uniform)
    assert play(*[error] * len(waits)).waits == pytest.approx([factor * each for each in waits])


def test_an_endless_outage_does_not_make_the_waits_endless(play: Play):
    waits = play(*[AWAY] * 1100).waits
    assert 0.75 <= waits[-1] <= 1.5


def test_a_refusal_after_an_outage_begins_with_a_short_wait(play: Play):
    waits = play(*[AWAY] * 20, RefusedError("starting"), AWAY).waits
    assert waits[20] <= 0.5
    assert waits[21] <= 0.1


def test_an_event_makes_the_waits_short_again(play: Play):
    lively = [event("ADDED", thing("a", "8")), BrokenError("reset")]
    waits = play(*[AWAY] * 5, page(version="7"), lively, []).waits
    assert waits[4] >= 0.75
    assert waits[5] <= 0.1


class Stopping(Script):
    """Stops the reflector between two events."""

    def watch(self, *_: Any) -> WatchStream:
        return WatchStream(self._events(), lambda: None)

    def _events(self) -> Iterator[WatchEvent]:
        try:
            yield WatchEvent("ADDED", item(thing("a", "8")))
            self.stop()
            yield WatchEvent("ADDED", item(thing("b", "9")))
        finally:
            self.over.set()


def test_nothing_is_reported_about_a_watch_once_it_is_stopped():
    script, notes = Stopping(page(version="7")), Notes()
    reflector = Reflector(script, THINGS, notes)
    script.stop = reflector.stop
    reflector.start()
    assert script.over.wait(SECONDS)
    assert notes.said == ["all: ", "is a"]


class Silent(Script):
    """Sends no event in a watch, until that is cut."""

    def __init__(self, *answers: Any) -> None:
        super().__init__(*answers)
        self.begun = threading.Event()
        self._cut = threading.Event()

    def watch(self, *_: Any) -> WatchStream:
        return WatchStream(self._events(), self._cut.set)

    def _events(self) -> Iterator[WatchEvent]:
        self.begun.set()
        self._cut.wait()
        self.over.set()
        yield from ()


def test_a_watch_ends_with_the_stop_without_an_event():
    script = Silent(page(version="7"))
    reflector = Reflector(script, THINGS, Notes())
    reflector.start()
    assert script.begun.wait(SECONDS)
    reflector.stop()
    assert script.over.wait(SECONDS)


def test_a_watch_that_begins_after_the_stop_ends_at_once(monkeypatch: pytest.MonkeyPatch):
    script = Silent(page(version="7"))
    reflector = Reflector(script, THINGS, Notes())
    begin = script.watch

    def stop_and_begin(*_: Any) -> WatchStream:
        reflector.stop()
        return begin()

    monkeypatch.setattr(script, "watch", stop_and_begin)
    reflector.start()
    assert script.over.wait(SECONDS)


def test_a_server_that_lacks_what_is_optional_has_none_of_it(play: Play):
    missing = MissingError("no such thing")
    optional = play(page(thing("a"), version="7"), missing, page(version="8"), optional=True)
    assert optional.said == ["all: a", "all: ", "all: "]
    assert optional.versions == [None, "7", None]


def test_a_server_that_lacks_what_is_needed_is_reported(play: Play):
    assert play(MissingError("no such thing")).said == ["error: no such thing"]
