# SPDX-License-Identifier: Apache-2.0
"""The last of many records, for readers that come back for what is new."""

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

Record = TypeVar("Record")


class NumberedRecords(NamedTuple, Generic[Record]):
    """Consecutive records starting with number `first`. `lost`: overwritten ones before it."""

    first: int
    records: Sequence[Record]
    lost: int = 0

    @property
    def end(self) -> int:
        """The number of the next record."""
        return self.first + len(self.records)


class FlowHistory(Generic[Record]):
    """The last records, numbered from 0. Thread-safe; adding never waits for readers."""

    def __init__(self, size: int) -> None:
        self._records = deque[Record](maxlen=size)
        self._end = 0
        self._changed = threading.Condition()

    @property
    def end(self) -> int:
        """The number of the next record."""
        return self._end

    def add(self, records: Sequence[Record]) -> None:
        """Add records, oldest first, overwriting the oldest ones."""
        with self._changed:
            self._records.extend(records)
            self._end += len(records)
            self._changed.notify_all()

    def since(self, number: int, wait: float = 0) -> NumberedRecords[Record]:
        """The remaining records from `number` on; waits up to `wait` seconds for one."""
        with self._changed:
            if wait and self._end <= number:
                self._changed.wait(wait)
            first = self._end - len(self._records)
            begin = max(number, first)
            newest = islice(reversed(self._records), max(self._end - begin, 0))
            return NumberedRecords(begin, list(newest)[::-1], begin - number)
