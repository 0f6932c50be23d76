# SPDX-License-Identifier: Apache-2.0
"""One page for all who ask at about the same time."""

import threading
import time
from collections.abc import Callable

from ebpflb.observe.http.server import Answer

# Nobody scrapes more often; a hundred at once cost what one does.
FRESH_SECONDS = 1.0


class SharedPage:
    """Makes a page when the last one is too old, one at a time: who asks meanwhile waits for it."""

    def __init__(
        self, make: Callable[[], Answer], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`clock`: seconds."""
        self._make = make
        self._clock = clock
        self._lock = threading.Lock()
        self._page: Answer | None = None
        self._made = 0.0

    def __call__(self) -> Answer:
        """The page, as of at most a second ago."""
        with self._lock:
            began = self._clock()
            if self._page is None or began - self._made >= FRESH_SECONDS:
                self._page = None
                self._page, self._made = self._make(), began
            return self._page
