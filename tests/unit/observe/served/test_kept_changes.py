# SPDX-License-Identifier: Apache-2.0
"""What was served, in files: what is found of each moment, whatever happens to the files."""

import gzip
import os
from collections.abc import Iterable
from pathlib import Path
from random import Random

import pytest

from ebpflb import own_files
from ebpflb.config.moment import rfc3339_ns
from ebpflb.errors import QueryError
from ebpflb.model.service import Service
from ebpflb.observe.kept_files import KEPT_SECONDS
from ebpflb.observe.served import kept_changes
from ebpflb.observe.served.kept_changes import KeptChanges
from ebpflb.observe.served.records import line_of, line_of_loss, read_record
from ebpflb.source.decode import decode
from tests.builders import service

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
HOUR = 3600 * SECOND


_random = Random(1)


def some_name() -> str:
    """Of random letters, which do not get shorter."""
    return f"a{_random.randbytes(30).hex()}"


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "flows" / "served"


@pytest.fixture
def kept(directory: Path, clock: Clock) -> KeptChanges:
    return KeptChanges(directory, 1 << 20, clock)


def begin(kept: KeptChanges, *names: str, lost_since: int = 0) -> None:
    def lines(now: str) -> Iterable[bytes]:
        if lost_since:
            yield line_of_loss(now, rfc3339_ns(lost_since))
        yield from (line_of(now, service(name)) for name in names)

    kept.begin(lines, lambda: None, kept._clock())


def add(kept: KeptChanges, moment: int, *names: str) -> None:
    kept.add([line_of(rfc3339_ns(moment), service(name)) for name in names])


def is_due(kept: KeptChanges) -> bool:
    return kept.needs_begin


def names(kept: KeptChanges, moment: int) -> list[str]:
    found = kept.records(moment, lambda line: b"Service" in line)
    items = [decode(bytes(each.object)) for each in found]
    return [each.name.name for each in items if isinstance(each, Service)]


def test_of_a_moment_there_is_what_was_served_until_then(kept, clock):
    begin(kept, "web", "api")
    add(kept, START + 2 * SECOND, "cart")
    add(kept, START + 4 * SECOND, "shop")
    assert names(kept, START) == ["web", "api"]
    assert names(kept, START + 2 * SECOND - 1) == ["web", "api"]
    assert names(kept, START + 2 * SECOND) == ["web", "api", "cart"]
    assert names(kept, START + 9 * SECOND) == ["web", "api", "cart", "shop"]


def test_another_agent_begins_anew_and_finds_what_earlier_ones_served(kept, directory, clock):
    begin(kept, "web")
    clock.now += HOUR
    after = KeptChanges(directory, 1 << 20, clock)
    begin(after, "api")
    assert names(after, START + HOUR - 1) == ["web"]
    assert names(after, START + HOUR) == ["api"]


def test_only_lines_that_matter_are_read(kept):
    begin(kept, "web")
    assert not list(kept.records(START, lambda line: b"nobody" in line))


def test_what_a_clock_that_was_ahead_dated_later_than_now_is_not_told(kept, directory, clock):
    clock.now -= 2 * HOUR
    begin(kept, "old")
    clock.now += 2 * HOUR
    begin(kept, "web")
    clock.now -= HOUR
    after = KeptChanges(directory, 1 << 20, clock)
    begin(after, "api")
    assert names(after, clock.now - 1) == ["old"]
    for moment in (clock.now, START, START + HOUR):
        assert names(after, moment) == ["api"]


def test_changes_after_the_clock_was_set_back_are_in_another_file(kept, clock):
    clock.now -= 2 * HOUR
    begin(kept, "web")
    clock.now += 2 * HOUR
    add(kept, clock.now, "api")
    clock.now -= HOUR
    assert is_due(kept)
    begin(kept, "web", "api", "cart")
    assert names(kept, clock.now - 1) == ["web"]
    assert names(kept, clock.now) == ["web", "api", "cart"]


def test_two_files_of_one_moment_follow_each_other(kept):
    begin(kept, "web")
    begin(kept, "api")
    assert names(kept, START) == ["web"]
    assert names(kept, START + 1) == ["api"]


@pytest.mark.parametrize("moment", [START - 1, 0])
def test_before_anything_was_kept_nothing_is_known(kept, moment):
    begin(kept, "web")
    with pytest.raises(QueryError, match="it is kept since 2023-11-14T22:13:20"):
        names(kept, moment)


def test_a_node_that_has_kept_nothing_says_so(kept, directory):
    with pytest.raises(QueryError, match="not kept"):
        names(kept, START)
    directory.mkdir(parents=True)
    with pytest.raises(QueryError, match="by this node yet"):
        names(kept, START)


def test_changes_that_could_not_be_kept_are_not_taken_for_none(kept, clock):
    begin(kept, "web")
    clock.now += HOUR
    begin(kept, "api", lost_since=START + 60 * SECOND)
    assert names(kept, START + 59 * SECOND) == ["web"]
    with pytest.raises(QueryError, match=r"since 2023-11-14T22:14:20.* could not be kept"):
        names(kept, START + 60 * SECOND)
    assert names(kept, START + HOUR) == ["api"]


def test_another_file_is_due_after_some_time_and_after_some_bytes(directory, clock):
    kept = KeptChanges(directory, 4096, clock)
    begin(kept, "web")
    assert not is_due(kept)
    clock.now += 8 * HOUR + 1
    assert is_due(kept)
    begin(kept, "web")
    while not is_due(kept):
        add(kept, clock.now, some_name())
    begin(kept, "web")
    assert not is_due(kept)


def test_with_many_services_as_many_changes_fit_into_a_file(directory, clock):
    kept = KeptChanges(directory, 1 << 18, clock)
    begin(kept, *(some_name() for _ in range(1000)))
    add(kept, START, *(some_name() for _ in range(800)))
    assert not kept.needs_begin
    add(kept, START, *(some_name() for _ in range(300)))
    assert kept.needs_begin


def test_the_oldest_files_go_when_all_are_too_large(directory, clock):
    kept = KeptChanges(directory, 2000, clock)
    for hour in range(20):
        clock.now = START + hour * HOUR
        begin(kept, "web", some_name())
    sizes = [each.stat().st_size for each in directory.iterdir()]
    assert sum(sizes) <= 2000 < sum(sizes) + sizes[0]
    assert len(names(kept, clock.now)) == 2
    with pytest.raises(QueryError, match="it is kept since"):
        names(kept, START)


def test_what_is_needed_of_the_last_day_stays(kept, directory, clock):
    day = int(KEPT_SECONDS) * SECOND
    for moment in (START, START + HOUR, START + day + HOUR - 1):
        clock.now = moment
        begin(kept, "web")
    assert len(list(directory.iterdir())) == 3
    clock.now = START + day + HOUR + 1
    add(kept, clock.now, "api")
    assert names(kept, clock.now - day) == ["web"]
    with pytest.raises(QueryError, match="it is kept since"):
        names(kept, START)


def test_what_does_not_fit_is_refused_and_what_was_kept_stays(directory, clock):
    small = KeptChanges(directory, 400, clock)
    begin(small, "web")
    clock.now += HOUR
    with pytest.raises(OSError, match="--flow-history-bytes"):
        begin(small, *(some_name() for _ in range(20)))
    assert names(small, START) == ["web"]
    # Without the first part of a file, its changes say nothing.
    add(small, clock.now, "api")
    assert names(small, clock.now) == ["web"]
    assert small.needs_begin


def test_of_an_agent_that_was_killed_all_but_its_last_write_is_found(kept, directory):
    begin(kept, "web")
    add(kept, START, "api")
    (file,) = directory.iterdir()
    whole = file.stat().st_size
    add(kept, START, "cart")
    for size in range(whole, file.stat().st_size):
        os.truncate(file, size)
        assert names(kept, START) == ["web", "api"]


@pytest.mark.parametrize("content", [b"no gzip", b"", gzip.compress(b"{}\n")])
def test_a_damaged_file_is_named(kept, directory, content):
    begin(kept, "web")
    (file,) = directory.iterdir()
    whole = file.read_bytes()
    for damaged in (content, whole[:-20]):
        file.write_bytes(damaged)
        with pytest.raises(QueryError, match=str(directory)):
            names(kept, START)


def test_a_file_that_others_may_write_is_not_read(kept, directory):
    begin(kept, "web")
    (file,) = directory.iterdir()
    file.chmod(0o666)
    with pytest.raises(QueryError, match="others may write"):
        names(kept, START)


def test_a_file_that_is_removed_meanwhile_is_one_of_which_nothing_is_kept(
    kept, directory, monkeypatch
):
    begin(kept, "web")
    (file,) = directory.iterdir()
    monkeypatch.setattr(kept_changes, "_begins", lambda _: [START])
    file.unlink()
    with pytest.raises(QueryError, match="not kept any more"):
        names(kept, START)


def test_a_disk_without_room_leaves_the_file_as_it_was(kept, directory, clock, monkeypatch):
    begin(kept, "web")
    with monkeypatch.context() as patched:
        patched.setattr(own_files, "append", _full)
        with pytest.raises(OSError, match="No space"):
            add(kept, START, "api")
    assert kept.needs_begin
    assert names(kept, START) == ["web"]


def _full(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_lines_are_what_they_were():
    (found,) = [read_record(line_of(rfc3339_ns(START), service()))]
    assert decode(bytes(found.object)) == service()
