# SPDX-License-Identifier: Apache-2.0
"""How many requests are answered at once, and how many of them for one viewer."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from ebpflb.relay.identity import Viewer
from ebpflb.relay.requests import ApiError

# Nobody keeps others from an answer alone, nor with two more.
_SHARE = 4


class Places:
    """Thread-safe."""

    def __init__(self, most: int, what: str) -> None:
        """`what`: in the plural, for who gets none."""
        self._most = most
        self._what = what
        self._lock = threading.Lock()
        self._taken = Counter[str]()

    @contextmanager
    def place_of(self, viewer: Viewer) -> Iterator[None]:
        """ApiError if there is none, or the viewer has its share."""
        with self._lock:
            if self._taken.total() >= self._most:
                raise _refused(f"{self._most} {self._what} are being answered")
            if self._taken[viewer.name] >= self._most // _SHARE:
                raise _refused(f"{self._most // _SHARE} {self._what} of yours are being answered")
            self._taken[viewer.name] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[viewer.name] -= 1
                # Without those who have none, or it would grow.
                self._taken += Counter()


def _refused(why: str) -> ApiError:
    return ApiError(HTTPStatus.TOO_MANY_REQUESTS, f"{why}: try again")
