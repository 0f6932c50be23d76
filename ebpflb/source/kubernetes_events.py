# SPDX-License-Identifier: Apache-2.0
"""Kubernetes Events, which tell users about the state of their objects."""

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from queue import Full, Queue
from typing import Protocol

from ebpflb.errors import SourceError
from ebpflb.model.objects.kinds import Kind, ObjectKey
from ebpflb.source.api import ApiRequest
from ebpflb.source.api_types import API_VERSIONS, Fields
from ebpflb.source.interface import Announcement

_log = logging.getLogger("ebpflb.source")

_CONTROLLER = "ebpflb"
# Events beyond this backlog are dropped.
_MOST = 256
# How long to wait at the end for Events not created yet.
_LAST_SECONDS = 2.0
_LONGEST_NOTE, _LONGEST_INSTANCE = 1024, 128


class Writer(Protocol):
    """What the announcer needs of `Api`."""

    def post(self, request: ApiRequest) -> None: ...


class Announcer:
    """Creates Events in its own thread; they are lost while the API server is down."""

    def __init__(self, api: Writer, node_name: str) -> None:
        self._api = api
        self._node_name = node_name
        self._uid: Callable[[ObjectKey], str] = lambda _: ""
        self._queue: Queue[Announcement | None] = Queue(_MOST)
        self._thread = threading.Thread(target=self._run, name="ebpflb-events", daemon=True)

    def start(self, uid: Callable[[ObjectKey], str]) -> None:
        """`uid`: returns that of an object, empty if unknown."""
        self._uid = uid
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, after a moment for the last announcements."""
        self._put(None)
        if self._thread.ident is not None:
            self._thread.join(_LAST_SECONDS)

    def announce(self, announcement: Announcement) -> None:
        """Create an Event soon. Does not block."""
        self._put(announcement)

    def _put(self, announcement: Announcement | None) -> None:
        try:
            self._queue.put_nowait(announcement)
        except Full:
            _log.debug("too many events queued, dropped one")

    def _run(self) -> None:
        while announcement := self._queue.get():
            try:
                self._api.post(self._request(announcement))
            except SourceError as error:
                _log.debug("cannot send an event: %s", error)

    def _request(self, announcement: Announcement) -> ApiRequest:
        namespace = announcement.about.namespace or "default"
        path = f"/apis/events.k8s.io/v1/namespaces/{namespace}/events"
        return ApiRequest(path, "events.events.k8s.io", {}, self._body(announcement, namespace))

    def _body(self, announcement: Announcement, namespace: str) -> Fields:
        about = announcement.about
        # The kubelet and kube-proxy refer to a Node by its name instead of its uid.
        uid = about.name if about.kind is Kind.NODE else self._uid(about)
        regarding = {
            "apiVersion": API_VERSIONS[about.kind.noun],
            "kind": about.kind.noun,
            "uid": uid,
        }
        return {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"generateName": f"{about.name}-", "namespace": namespace},
            "eventTime": datetime.now(UTC).isoformat(timespec="microseconds"),
            "reportingController": _CONTROLLER,
            "reportingInstance": f"{_CONTROLLER}-{self._node_name}"[:_LONGEST_INSTANCE],
            "action": announcement.reason,
            "reason": announcement.reason,
            "note": announcement.note[:_LONGEST_NOTE],
            "type": "Warning" if announcement.warning else "Normal",
            "regarding": {**regarding, "namespace": about.namespace, "name": about.name},
        }
