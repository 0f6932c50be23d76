# SPDX-License-Identifier: Apache-2.0
"""One API resource, listed once and then watched, as client-go's reflector does.

The official client's informer is not enough: see tests/unit/source/test_informer_gaps.py.
"""

import random
import threading
import time
from collections.abc import Generator, Iterator
from typing import NamedTuple, Protocol

from ebpflb.errors import SourceError
from ebpflb.source.api import (
    JSON,
    ApiRequest,
    BrokenError,
    ExpiredError,
    MissingError,
    Query,
    RefusedError,
    UnreadableError,
    WatchStream,
)
from ebpflb.source.api_objects import Item, WatchEvent
from ebpflb.source.api_types import ListMetadata, StatusObject, is_name
from ebpflb.source.typed import quickly

_PAGE = 500
# The server ends a watch after a random time in this range, as client-go asks for.
_WATCH_SECONDS = (300, 600)
# Bookmarks come every minute: a connection silent for twice as long is dead.
SILENCE_SECONDS = 130.0
# An unreachable server is retried soon: that is cheap, and it may be back by then.
_UNREACHABLE_SECONDS = (0.1, 1.5)
_REFUSED_SECONDS = (0.5, 30.0)
# The minimum time between two watches if the server ends them at once.
_SHORT_WATCH_SECONDS = 1.0
# After so many unreadable events at one version, everything is listed again.
_PATIENCE = 3


class Resource(NamedTuple):
    """A collection: its path, its RBAC name, and the selectors.

    is_optional: a server that does not have the resource counts as having no objects of it.
    metadata_only: nothing else is asked for of the objects, a small part of a Pod.
    """

    path: str
    name: str
    query: Query
    is_optional: bool = False
    metadata_only: bool = False


class Reader(Protocol):
    """What a reflector needs of `Api`."""

    def items(self, request: ApiRequest) -> Generator[Item, None, ListMetadata]: ...

    def watch(self, request: ApiRequest, silence: float) -> WatchStream: ...


class Follower(Protocol):
    """Receives what the API server sends, in the reflector's thread."""

    def replace(self, items: Iterator[Item]) -> None:
        """The complete list of objects. If the iterator raises SourceError, nothing changes."""
        ...

    def change(self, item: Item, *, deleted: bool) -> None:
        """One object, of which at least the name is readable, was added, modified or deleted."""
        ...

    def report(self, error: str) -> None:
        """Why the resource cannot be listed or watched; empty once it can again."""
        ...


class Reflector:
    """Lists and watches in its own thread, until stopped.

    While the server cannot be reached, the objects stay as they are. A watch resumes from the last
    version it saw; everything is listed again only if the server no longer has that version, or
    sends what cannot be read time and again.
    """

    def __init__(self, api: Reader, resource: Resource, follower: Follower) -> None:
        self._api = api
        self._resource = resource
        self._follower = follower
        self._stopped = threading.Event()
        self._version = ""
        self._events: WatchStream | None = None
        self._failures = 0
        self._is_refused = False
        self._is_reported = False
        # How many events could not be read since something could; and whether the last watch ended
        # with an error of the server's.
        self._unreadable = 0
        self._in_doubt = False
        name = f"ebpflb-{resource.name.partition('.')[0]}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make the thread end, without waiting for it."""
        self._stopped.set()
        if events := self._events:
            events.cut()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                if not self._version:
                    self._follower.replace(self._items())
                self._watch()
            except SourceError as error:
                self._note(error)
                self._stopped.wait(self._wait_seconds(error))

    def _note(self, error: SourceError) -> None:
        if isinstance(error, ExpiredError):
            self._version = ""
        elif isinstance(error, MissingError) and self._resource.is_optional:
            self._version = ""
            self._follower.replace(iter(()))
            self._has_read()
        elif not isinstance(error, BrokenError):
            self._is_reported = True
            self._follower.report(str(error))
        if isinstance(error, UnreadableError):
            self._unreadable += 1
            if self._unreadable % _PATIENCE == 0:
                self._version = ""

    def _wait_seconds(self, error: SourceError) -> float:
        """Seconds to wait: doubling, with jitter so that nodes do not all return at once."""
        is_refused = isinstance(error, RefusedError | UnreadableError)
        first, last = _REFUSED_SECONDS if is_refused else _UNREACHABLE_SECONDS
        # Start over with a short wait if a server, back after an outage, refuses while it starts.
        self._failures = min(self._failures + 1, 10) if is_refused == self._is_refused else 1
        self._is_refused = is_refused
        seconds = min(first * 2.0 ** (self._failures - 1), last)
        return seconds * random.uniform(0.5, 1)  # noqa: S311  no key

    def _items(self) -> Iterator[Item]:
        query = {**self._resource.query, "limit": str(_PAGE)}
        rest = "first"
        while rest:
            page = yield from self._api.items(self._request(query))
            query["continue"] = rest = page.rest or ""
        self._version = page.resource_version or ""
        self._has_read()

    def _watch(self) -> None:
        query = {
            **self._resource.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(random.randint(*_WATCH_SECONDS)),  # noqa: S311  no key
        }
        began = time.monotonic()
        self._events = events = self._api.watch(self._request(query), SILENCE_SECONDS)
        if self._stopped.is_set():
            events.cut()
        if not self._in_doubt:
            self._recovered()
        try:
            for event in events:
                if self._stopped.is_set():
                    return
                self._take(event)
                self._failures = 0
                self._has_read()
        except SourceError as error:
            self._in_doubt |= not isinstance(error, BrokenError)
            raise
        finally:
            self._events = None
        self._has_read()
        if time.monotonic() - began < _SHORT_WATCH_SECONDS:
            self._stopped.wait(_SHORT_WATCH_SECONDS)

    def _request(self, query: Query) -> ApiRequest:
        wanted, accept = self._resource, JSON
        if wanted.metadata_only:
            kind = "PartialObjectMetadata" if "watch" in query else "PartialObjectMetadataList"
            accept = f"{JSON};as={kind};g=meta.k8s.io;v=v1"
        return ApiRequest(wanted.path, wanted.name, query, accept=accept)

    def _take(self, event: WatchEvent) -> None:
        known = event.item.known
        if event.kind == "ERROR":
            raise _error(self._resource.name, event.item)
        if event.kind != "BOOKMARK":
            if event.item.problem and not is_name(known.name):
                problem = f"{self._resource.name}, an object without a name: {event.item.problem}"
                raise UnreadableError(f"cannot read {problem}")
            self._follower.change(event.item, deleted=event.kind == "DELETED")
        self._version = known.version or self._version

    def _has_read(self) -> None:
        self._unreadable = 0
        self._in_doubt = False
        self._recovered()

    def _recovered(self) -> None:
        if self._is_reported:
            self._is_reported = False
            self._follower.report("")


def _error(resource: str, item: Item) -> SourceError:
    gone = 410
    status = quickly(item.raw, StatusObject) or StatusObject()
    text = f"cannot watch {resource}: {status.message}"
    return ExpiredError(text) if status.code == gone else RefusedError(text)
