# SPDX-License-Identifier: Apache-2.0
"""Events as sent to the API server, and what happens when that fails."""

import re
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from queue import Queue
from typing import Any

import pytest

from ebpflb.errors import SourceError
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.source.api import ApiRequest
from ebpflb.source.interface import Announcement
from ebpflb.source.kubernetes_events import Announcer
from tests.builders import NODE

SECONDS = 60
WEB = ObjectKey(Kind.SERVICE, "shop", "web")
OWN_NODE = ObjectKey(Kind.NODE, "", NODE)


class Posted:
    """A Writer. fails: the next posts; `blocked` posts wait until `go`."""

    def __init__(self) -> None:
        self.requests: Queue[ApiRequest] = Queue()
        self.fails = 0
        self.go = threading.Event()
        self.go.set()
        self.started = threading.Event()

    def post(self, request: ApiRequest) -> None:
        self.started.set()
        self.go.wait()
        if self.fails:
            self.fails -= 1
            raise SourceError("away")
        self.requests.put(request)

    def body(self) -> dict[str, Any]:
        """Of the next request."""
        return dict(self.requests.get(timeout=SECONDS).body or {})


@pytest.fixture
def posted() -> Posted:
    return Posted()


@pytest.fixture
def announcer(posted: Posted) -> Iterator[Announcer]:
    announcer = Announcer(posted, NODE)
    yield announcer
    posted.go.set()
    announcer.stop()


def uid(key: ObjectKey) -> str:
    return f"uid-of-{key.name}"


def test_an_event_of_a_service_is_created_in_its_namespace(announcer: Announcer, posted: Posted):
    announcer.start(uid)
    announcer.announce(Announcement(WEB, "FrontendConflict", "somebody else has it"))
    request = posted.requests.get(timeout=SECONDS)
    assert request.path == "/apis/events.k8s.io/v1/namespaces/shop/events"
    assert request.resource == "events.events.k8s.io"
    body = dict(request.body or {})
    when = body.pop("eventTime")
    assert body == {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": "web-", "namespace": "shop"},
        "reportingController": "ebpflb",
        "reportingInstance": "ebpflb-node-a",
        "action": "FrontendConflict",
        "reason": "FrontendConflict",
        "note": "somebody else has it",
        "type": "Warning",
        "regarding": {
            "apiVersion": "v1",
            "kind": "Service",
            "namespace": "shop",
            "name": "web",
            "uid": "uid-of-web",
        },
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}\+00:00", when)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(when)) < timedelta(minutes=1)


def test_an_event_of_a_node_is_in_the_default_namespace(announcer: Announcer, posted: Posted):
    announcer.start(uid)
    announcer.announce(Announcement(OWN_NODE, "Starting", "it starts", warning=False))
    request = posted.requests.get(timeout=SECONDS)
    body = dict(request.body or {})
    assert request.path == "/apis/events.k8s.io/v1/namespaces/default/events"
    assert body["metadata"] == {"generateName": "node-a-", "namespace": "default"}
    assert body["type"] == "Normal"
    assert body["regarding"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "namespace": "",
        "name": NODE,
        "uid": NODE,
    }


def test_an_event_of_a_slice_names_its_api_group(announcer: Announcer, posted: Posted):
    announcer.start(uid)
    announcer.announce(Announcement(ObjectKey(Kind.ENDPOINT_SLICE, "a", "b"), "Odd", ""))
    assert posted.body()["regarding"]["apiVersion"] == "discovery.k8s.io/v1"


def test_a_long_note_is_cut_where_the_api_server_would_refuse_it(
    announcer: Announcer, posted: Posted
):
    announcer.start(uid)
    announcer.announce(Announcement(WEB, "Long", "x" * 2000))
    assert posted.body()["note"] == "x" * 1024


def test_what_was_announced_before_the_start_is_created_then(announcer: Announcer, posted: Posted):
    announcer.announce(Announcement(WEB, "Early", ""))
    announcer.start(uid)
    assert posted.body()["regarding"]["uid"] == "uid-of-web"


def test_an_event_is_lost_while_the_api_server_is_away_and_the_next_one_is_not(
    announcer: Announcer, posted: Posted, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG", "ebpflb.source")
    posted.fails = 1
    announcer.start(uid)
    for reason in ("First", "Second"):
        announcer.announce(Announcement(WEB, reason, ""))
    assert posted.body()["reason"] == "Second"
    assert posted.requests.empty()
    assert "cannot send an event: away" in caplog.text


def test_announcing_never_waits_and_what_is_too_much_is_left_out(
    announcer: Announcer, posted: Posted, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("DEBUG", "ebpflb.source")
    posted.go.clear()
    announcer.start(uid)
    announcer.announce(Announcement(WEB, "first", ""))
    assert posted.started.wait(SECONDS)
    for index in range(257):
        announcer.announce(Announcement(WEB, f"n{index}", ""))
    assert caplog.text.count("too many events queued, dropped one") == 1
    posted.go.set()
    reasons = [posted.body()["reason"] for _ in range(257)]
    assert reasons == ["first", *(f"n{index}" for index in range(256))]
    announcer.announce(Announcement(WEB, "later", ""))
    assert posted.body()["reason"] == "later"


def test_its_thread_ends(announcer: Announcer, posted: Posted):
    before = set(threading.enumerate())
    announcer.start(uid)
    (thread,) = set(threading.enumerate()) - before
    announcer.announce(Announcement(WEB, "Last", ""))
    announcer.stop()
    thread.join(SECONDS)
    assert not thread.is_alive()
    assert posted.body()["reason"] == "Last"


def test_what_was_announced_last_is_created_before_the_end(
    announcer: Announcer, posted: Posted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ebpflb.source.kubernetes_events._LAST_SECONDS", SECONDS)
    announcer.start(uid)
    posted.go.clear()
    announcer.announce(Announcement(OWN_NODE, "FailedToStartProxierHealthcheck", "in use"))
    later = threading.Timer(0.1, posted.go.set)
    later.start()
    announcer.stop()
    later.join()
    assert posted.requests.qsize() == 1


def test_the_end_does_not_wait_for_long(
    announcer: Announcer, posted: Posted, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("ebpflb.source.kubernetes_events._LAST_SECONDS", 0.05)
    announcer.start(uid)
    posted.go.clear()
    announcer.announce(Announcement(WEB, "FrontendConflict", "somebody else has it"))
    announcer.stop()
    assert posted.requests.empty()
