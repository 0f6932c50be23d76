# SPDX-License-Identifier: Apache-2.0
"""Work that several want at the same time is done once."""

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Shared(Generic[Result]):
    """Nothing is kept: who comes after the end has it done again. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[Hashable, Future[Result]] = {}

    def get(self, what: Hashable, make: Callable[[], Result]) -> Result:
        """The result of `make`, or of another thread's for the same. Raises what it raises."""
        with self._lock:
            running = self._running.get(what)
            if running is None:
                mine: Future[Result] = Future()
                self._running[what] = mine
        if running:
            return running.result()
        try:
            mine.set_result(make())
        except BaseException as error:  # noqa: BLE001  any error belongs to all who wait
            mine.set_exception(error)
        finally:
            with self._lock:
                del self._running[what]
        return mine.result()
