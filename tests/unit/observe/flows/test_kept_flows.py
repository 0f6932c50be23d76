# SPDX-License-Identifier: Apache-2.0
"""Flows in files: what is found again, after restarts and whatever happens to the files."""

import gzip
import os
import time
from pathlib import Path

import pytest

from ebpflb import own_files
from ebpflb.model.flow import Flow, FlowFrontend, LostFlows, flow_line
from ebpflb.observe.flows.kept_flows import KeptFlows
from ebpflb.observe.kept_files import KEPT_SECONDS

NOW = time.time()
ALWAYS = ""
ALL = 1 << 60


class Clock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "flows"


def line(seq: int, second: int = 0) -> bytes:
    frontend = FlowFrontend(address="10.96.0.1", port=80)
    moment = f"2020-01-15T08:00:{second:02}.000000000Z"
    return flow_line(
        Flow(
            time=moment,
            event="end",
            verdict="forwarded",
            protocol="TCP",
            path="tc",
            seq=seq,
            frontend=frontend,
        )
    )


def numbers(kept: KeptFlows, earliest: str = ALWAYS, before: int = ALL) -> list[int]:
    return [flow.seq for flow in kept.flows(earliest, before)]


def test_what_was_written_is_found_in_that_order(directory: Path, clock: Clock):
    kept = KeptFlows(directory, 1 << 20, clock)
    assert numbers(kept) == []
    kept.write([line(0), line(1)])
    kept.write([])
    kept.write([flow_line(LostFlows(lost=3)), line(5)])
    assert numbers(kept) == [0, 1, 5]
    assert oct(directory.stat().st_mode & 0o777) == "0o700"
    assert [oct(each.stat().st_mode & 0o777) for each in directory.iterdir()] == ["0o600"]


def test_only_what_is_new_enough(directory: Path, clock: Clock):
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0, 10), line(1, 30), line(2, 20)])
    assert numbers(kept, "2020-01-15T08:00:20") == [1, 2]
    assert [each.seq for each in kept.flows("", ALL, "2020-01-15T08:00:20.0Z")] == [0, 2]


def test_what_is_missing_is_found_by_the_time_in_between(directory: Path, clock: Clock):
    def moment(second: int) -> str:
        return f"2020-01-15T08:00:{second:02}.000000000Z"

    kept = KeptFlows(directory, 1 << 20, clock)
    lost = LostFlows(lost=3, since=moment(10), time=moment(30))
    kept.write([flow_line(lost), line(0, 20), flow_line(LostFlows(lost=9)), line(1, 40)])
    found = [*kept.records(moment(15), ALL, moment(25))]
    assert found[0] == lost
    assert len(found) == 2
    assert lost in [*kept.records(moment(25), 0)]
    assert lost not in [*kept.records(moment(31), ALL)]
    assert lost not in [*kept.records("", ALL, moment(9))]


def test_of_this_run_only_what_is_not_in_memory_any_more(directory: Path, clock: Clock):
    KeptFlows(directory, 1 << 20, clock).write([line(0), line(9)])
    clock.now += 60
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0), line(1), line(2)])
    assert numbers(kept, before=2) == [0, 9, 0, 1]


def test_what_is_written_after_the_clock_was_set_back_comes_last(directory: Path, clock: Clock):
    KeptFlows(directory, 1 << 20, clock).write([line(7)])
    clock.now -= 3600
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0), line(1)])
    assert numbers(kept, before=1) == [7, 0]


def test_the_oldest_are_removed_when_all_are_too_large(directory: Path, clock: Clock):
    room = 100_000
    kept = KeptFlows(directory, room, clock)
    for seq in range(0, 60_000, 500):
        kept.write([line(each) for each in range(seq, seq + 500)])
        assert sum(each.stat().st_size for each in directory.iterdir()) <= room
    found = numbers(kept)
    assert found == list(range(found[0], 60_000))
    assert len(found) > 10_000


def test_and_when_they_are_a_day_old(directory: Path, clock: Clock):
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0)])
    clock.now = (directory / os.listdir(directory)[0]).stat().st_mtime + KEPT_SECONDS + 1
    again = KeptFlows(directory, 1 << 20, clock)
    again.write([line(1)])
    assert numbers(again) == [1]


def test_a_file_that_was_cut_off_has_what_is_whole(directory: Path, clock: Clock, caplog):
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0), line(1)])
    kept.write([line(2)])
    (file,) = directory.iterdir()
    os.truncate(file, file.stat().st_size - 3)
    clock.now += 1
    again = KeptFlows(directory, 1 << 20, clock)
    again.write([line(3)])
    assert numbers(again) == [0, 1, 2, 3]
    assert len(caplog.messages) == 1
    assert (numbers(again)[-1], again.damaged) == (3, 1)


@pytest.mark.parametrize(
    "content",
    [b"", b"nonsense", gzip.compress(b"nonsense\n"), gzip.compress(line(7))[:-9] + b"?" * 9],
    ids=["empty", "no gzip", "no flows", "another checksum"],
)
def test_a_corrupt_file_costs_its_own_flows(directory: Path, clock: Clock, content: bytes):
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0)])
    (directory / f"{0:013}-{0:06}.jsonl.gz").write_bytes(content)
    assert numbers(kept)[-1] == 0
    assert kept.damaged == (content != b"")


def test_what_is_being_written_is_not_taken_for_damaged(directory: Path, clock: Clock):
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0)])
    (file,) = directory.iterdir()
    with file.open("ab") as half:
        half.write(gzip.compress(line(1))[:20])
    assert (numbers(kept), kept.damaged) == ([0], 0)
    assert KeptFlows(directory, 1 << 20, clock).damaged == 0


def test_other_files_stay_and_are_not_read(directory: Path, clock: Clock):
    kept = KeptFlows(directory, 1, clock)
    kept.write([line(0)])
    (directory / "notes").write_text("mine")
    kept.write([line(1)])
    assert numbers(kept) == [1]
    assert (directory / "notes").exists()


def test_a_link_in_its_place_is_not_followed(directory: Path, clock: Clock, tmp_path: Path):
    directory.parent.mkdir()
    directory.symlink_to(tmp_path)
    kept = KeptFlows(directory, 1 << 20, clock)
    with pytest.raises(OSError, match="flows"):
        kept.write([line(0)])
    assert numbers(kept) == []


def test_a_write_that_fails_leaves_what_there_was(directory: Path, clock: Clock, monkeypatch):
    kept = KeptFlows(directory, 1 << 20, clock)
    kept.write([line(0)])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(own_files, "append", full)
    with pytest.raises(OSError, match="No space"):
        kept.write([line(1)])
    assert numbers(kept) == [0]
