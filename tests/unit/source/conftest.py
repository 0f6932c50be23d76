# SPDX-License-Identifier: Apache-2.0
"""Sources and watches that are stopped at the end of a test."""

import queue
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from ebpflb.source.directory import DirectorySource
from ebpflb.source.interface import SourceEvent
from ebpflb.source.watch import Watch


class Events:
    """What a source has emitted, one by one."""

    def __init__(self) -> None:
        self.queue: queue.Queue[SourceEvent] = queue.Queue()

    def next(self) -> SourceEvent:
        return self.queue.get(timeout=60)


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


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A directory with one manifest."""
    path = tmp_path / "manifests"
    path.mkdir()
    (path / "web.yaml").write_text("old")
    return path


def watch_count(watch: Watch) -> int:
    """How many directories the kernel watches."""
    lines = Path(f"/proc/self/fdinfo/{watch.fileno()}").read_text().splitlines()
    return sum(line.startswith("inotify") for line in lines)


@pytest.fixture
def watch(home: Path) -> Iterator[Watch]:
    """A watch that follows that directory."""
    with closing(Watch(str(home))) as found:
        found.follow()
        yield found
