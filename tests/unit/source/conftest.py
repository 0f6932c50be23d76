# SPDX-License-Identifier: Apache-2.0
"""Sources that are stopped at the end of a test."""

import queue
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebpflb.source.directory import DirectorySource
from ebpflb.source.event import SourceEvent


class Events:
    """What a source has emitted, one by one."""

    def __init__(self) -> None:
        self.queue: queue.Queue[SourceEvent] = queue.Queue()

    def next(self) -> SourceEvent:
        return self.queue.get(timeout=10)


Start = Callable[[Path], Events]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts sources; all are stopped at the end."""
    sources = []

    def start_source(path: Path) -> Events:
        events = Events()
        sources.append(DirectorySource(path, events.queue.put))
        sources[-1].start()
        return events

    yield start_source
    for source in sources:
        source.stop()
