# SPDX-License-Identifier: Apache-2.0
"""An API server that gives the answers a test has written down, one by one."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from ebpflb.errors import SourceError
from ebpflb.source.api import ApiRequest
from ebpflb.source.fields import Fields

SECONDS = 10


class Script:
    """A Reader. What is an exception is raised, also from the middle of a watch.

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

    def get(self, request: ApiRequest) -> Fields:
        answer = self._answer(request)
        assert isinstance(answer, dict), f"asked for a list, want {answer}"
        return answer

    def watch(self, request: ApiRequest, silence: float) -> Iterator[Fields]:
        answer = self._answer(request)
        assert isinstance(answer, list), f"asked to watch, want {answer}"
        self.silences.append(silence)
        return map(_raised, answer)

    def _answer(self, request: ApiRequest) -> Any:
        if not self._answers:
            self.stop()
            self.over.set()
            raise SourceError("the script is over")
        self.queries.append(dict(request.query))
        self.paths.append(request.path)
        return _raised(self._answers.popleft())


def _raised(answer: Any) -> Any:
    if isinstance(answer, Exception):
        raise answer
    return answer


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
