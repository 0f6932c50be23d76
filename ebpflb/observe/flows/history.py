# SPDX-License-Identifier: Apache-2.0
"""The last records, numbered as they came, for any number of readers. Nobody waits for a reader."""

import threading
from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

Record = TypeVar("Record")


class Batch(NamedTuple, Generic[Record]):
    """Records in a row, the first one numbered `first`; `lost` came before them and are gone."""

    first: int
    records: Sequence[Record]
    lost: int = 0

    @property
    def end(self) -> int:
        """The number of the record that comes next."""
        return self.first + len(self.records)


class FlowHistory(Generic[Record]):
    """Numbers go up by one from 0. Any thread may call."""

    def __init__(self, size: int) -> None:
        """`size`: how many are kept."""
        self._records = deque[Record](maxlen=size)
        self._end = 0
        self._changed = threading.Condition()

    @property
    def end(self) -> int:
        """The number of the next record."""
        return self._end

    def add(self, records: Sequence[Record]) -> None:
        """Add records, oldest first; as many of the oldest go."""
        with self._changed:
            self._records.extend(records)
            self._end += len(records)
            self._changed.notify_all()

    def since(self, number: int, wait: float = 0) -> Batch[Record]:
        """The records from `number` on, as far as they are there; wait so many seconds for one."""
        with self._changed:
            if wait and self._end <= number:
                self._changed.wait(wait)
            first = self._end - len(self._records)
            begin = max(number, first)
            newest = islice(reversed(self._records), max(self._end - begin, 0))
            return Batch(begin, list(newest)[::-1], begin - number)
