# SPDX-License-Identifier: Apache-2.0
"""An API server that sends a test's prepared responses, one by one."""

import json
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from ebpflb.errors import SourceError
from ebpflb.from_json import JsonError
from ebpflb.source.api import ApiRequest, UnreadableError, WatchStream
from ebpflb.source.api_objects import Item, WatchEvent, event_of, item_of, items_of
from ebpflb.source.api_types import Fields, ListMetadata
from ebpflb.source.typed import FieldError

SECONDS = 60


class Script:
    """A Reader of pages and of lists of events: values, or bytes if no value will do.

    What is an exception is raised, also from the middle of a watch.

    With the last answer given `over` is set and `stop` is called: nothing that is asked later
    counts.
    """

    def __init__(self, *answers: Any) -> None:
        self.queries: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.silences: list[float] = []
        self.over = threading.Event()
        self.stop: Callable[[], None] = lambda: None
        self._answers = deque(answers)

    def items(self, request: ApiRequest) -> Generator[Item, None, ListMetadata]:
        answer = self._answer(request)
        assert isinstance(answer, dict | bytes), f"asked for a list, want {answer}"
        try:
            return (yield from items_of(_as_bytes(answer)))
        except (JsonError, FieldError) as error:
            raise UnreadableError(f"cannot read {request.resource}: {error}") from error

    def watch(self, request: ApiRequest, silence: float) -> WatchStream:
        answer = self._answer(request)
        assert isinstance(answer, list), f"asked to watch, want {answer}"
        self.silences.append(silence)
        return WatchStream(map(_event, answer), lambda: None)

    def _answer(self, request: ApiRequest) -> Any:
        if not self._answers:
            self.stop()
            self.over.set()
            raise SourceError("the script is over")
        self.queries.append(dict(request.query))
        self.paths.append(request.path)
        return _raised(self._answers.popleft())


def _event(answer: Any) -> WatchEvent:
    try:
        return event_of(_as_bytes(_raised(answer)))
    except JsonError as error:
        raise UnreadableError(f"cannot read an event: {error}") from error


def _as_bytes(answer: Any) -> bytes:
    return answer if isinstance(answer, bytes) else json.dumps(answer).encode()


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


def item(document: Fields) -> Item:
    """An object as the API server sends it."""
    return item_of(_as_bytes(document))


def page(*items: Fields, version: str = "", rest: str = "") -> Fields:
    """One page of a list; `rest`: the token for the next one."""
    return {"metadata": {"resourceVersion": version, "continue": rest}, "items": list(items)}


def event(kind: str, item: Fields) -> Fields:
    """One line of a watch."""
    return {"type": kind, "object": item}


def versioned(item: Fields, version: str, uid: str = "") -> Fields:
    """The same object as the API server gives it."""
    metadata = {**item["metadata"], "resourceVersion": version, "uid": uid}
    return {**item, "metadata": metadata}
