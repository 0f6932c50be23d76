# SPDX-License-Identifier: Apache-2.0
"""What viewers may see: the API server decides, and its answers are kept for a few seconds."""

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ebpflb.relay.identity import Viewer

SECONDS = 10.0
"""How long an answer holds, from when it was asked for."""

MOST_ANSWERS = 4096


class Attributes(NamedTuple):
    """What is to be allowed, as in a SubjectAccessReview. group: "" for core.

    namespace: "" for all namespaces, and for what has none.
    """

    verb: str
    group: str
    resource: str
    namespace: str = ""


class _Answer(NamedTuple):
    until: float
    is_allowed: bool


class ViewerRights:
    """Thread-safe. Two threads that want the same at once may both ask for it."""

    def __init__(
        self,
        review: Callable[[Mapping[str, object]], Mapping[str, Any]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`review`: posts a SubjectAccessReview, and gives the answer."""
        self._review = review
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[tuple[Viewer, Attributes], _Answer] = {}

    def may(self, viewer: Viewer, what: Attributes) -> bool:
        """Whether RBAC, or whatever authorizes, allows it. Raises what `review` raises."""
        now = self._clock()
        with self._lock:
            known = self._answers.get((viewer, what))
        if known and now < known.until:
            return known.is_allowed
        found = _is_allowed(self._review(review_of(viewer, what)))
        self._keep((viewer, what), _Answer(now + SECONDS, found))
        return found

    def _keep(self, asked: tuple[Viewer, Attributes], answer: _Answer) -> None:
        with self._lock:
            self._answers.pop(asked, None)
            self._answers[asked] = answer
            if len(self._answers) > MOST_ANSWERS:
                del self._answers[next(iter(self._answers))]


def review_of(viewer: Viewer, what: Attributes) -> dict[str, object]:
    """A SubjectAccessReview."""
    return {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": viewer.name,
            "groups": list(viewer.groups),
            "uid": viewer.uid,
            "extra": {key: list(values) for key, values in viewer.extra},
            "resourceAttributes": what._asdict(),
        },
    }


def _is_allowed(answer: object) -> bool:
    """An answer of an unexpected form allows nothing, nor does one that also denies."""
    status = answer.get("status") if isinstance(answer, Mapping) else None
    if not isinstance(status, Mapping):
        return False
    return status.get("allowed") is True and not status.get("denied")
