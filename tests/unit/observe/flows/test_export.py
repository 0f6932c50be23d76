# SPDX-License-Identifier: Apache-2.0
import json
import logging
import os
import stat
import threading
from errno import ENOSPC

import pytest

from ebpflb.model.flow import LostFlows, read_flow
from ebpflb.observe.flows import export
from ebpflb.observe.flows.export import FlowExport, RotatedFile, StandardOutput, sink_for
from ebpflb.observe.flows.history import FlowHistory


class Full:
    """A disk that is full for a while."""

    def __init__(self):
        self.room = False
        self.lines = []

    def write(self, lines):
        if lines and not self.room:
            raise OSError(ENOSPC, os.strerror(ENOSPC))
        self.lines += lines


def line(at, record):
    return b"%d %b\n" % (at, record.encode())


def exporting(sink, size=100):
    history: FlowHistory[str] = FlowHistory(size)
    return history, FlowExport(history, line, sink, "there")


def lost_in(told):
    found = read_flow(told)
    assert isinstance(found, LostFlows)
    return found.lost


def contents(path):
    return {each.name: each.read_text() for each in sorted(path.iterdir())}


def test_a_file_gets_what_comes_after_the_start(tmp_path):
    history, export = exporting(RotatedFile(tmp_path / "flows", 1000, 2))
    history.add(["before"])
    export.start()
    history.add(["a"])
    history.add(["b", "c"])
    export.stop()
    assert contents(tmp_path) == {"flows": "1 a\n2 b\n3 c\n"}
    assert stat.S_IMODE((tmp_path / "flows").stat().st_mode) == 0o600


def test_files_are_rotated_by_size_and_the_oldest_go(tmp_path):
    file = RotatedFile(tmp_path / "flows", 10, 3)
    for first in range(0, 40, 4):
        file.write([b"%03d\n" % number for number in range(first, first + 4)])
    assert contents(tmp_path) == {
        "flows": "038\n039\n",
        "flows.1": "036\n037\n",
        "flows.2": "034\n035\n",
    }


def test_with_one_file_there_is_never_a_second(tmp_path):
    file = RotatedFile(tmp_path / "flows", 10, 1)
    file.write([b"%03d\n" % number for number in range(5)])
    assert contents(tmp_path) == {"flows": "004\n"}


def test_a_line_that_is_larger_than_a_file_gets_one_for_itself(tmp_path):
    RotatedFile(tmp_path / "flows", 10, 3).write([b"a\n", b"b" * 20 + b"\n", b"c\n"])
    assert contents(tmp_path) == {"flows": "c\n", "flows.1": "b" * 20 + "\n", "flows.2": "a\n"}


def test_a_file_that_somebody_moved_is_started_over(tmp_path):
    file = RotatedFile(tmp_path / "flows", 100, 2)
    file.write([b"a\n"])
    (tmp_path / "flows").rename(tmp_path / "moved")
    file.write([b"b\n"])
    assert contents(tmp_path) == {"flows": "b\n", "moved": "a\n"}


def test_half_a_line_that_a_killed_agent_left_is_cut_off(tmp_path):
    (tmp_path / "flows").write_bytes(b'{"a": 1}\n{"b": ')
    (tmp_path / "others").write_bytes(b'{"b": ')
    for name in ("flows", "others"):
        RotatedFile(tmp_path / name, 1000, 2).write([b'{"c": 3}\n'])
    assert contents(tmp_path) == {"flows": '{"a": 1}\n{"c": 3}\n', "others": '{"c": 3}\n'}


def test_a_symbolic_link_is_not_followed_and_that_is_one_line(tmp_path, caplog):
    target, link = tmp_path / "target", tmp_path / "flows"
    target.write_text("mine\n")
    link.symlink_to(target)
    history, export = exporting(sink_for(str(link), 1000, 2))
    for record in "ab":
        history.add([record])
        export.export(0)
    assert (target.read_text(), export.lost) == ("mine\n", 2)
    (told,) = caplog.records
    assert told.message == (
        "cannot export flow records: the file is a symbolic link, which is not followed; retrying"
    )


def test_a_line_that_standard_output_took_half_of_is_finished_first(monkeypatch):
    reader, writer = os.pipe2(os.O_NONBLOCK)
    monkeypatch.setattr(export, "_STDOUT", writer)
    sink, lines = StandardOutput(), [json.dumps({"a": "b" * 1000}).encode() + b"\n"] * 100
    read = b""
    with open(reader, "rb", buffering=0) as file, open(writer, "wb", buffering=0):
        for _ in range(2):
            with pytest.raises(BlockingIOError):
                sink.write(lines)
            with pytest.raises(BlockingIOError):
                sink.write(lines[:1])
            while part := file.read(65536):
                read += part
        sink.write(lines[:1])
        read += file.read(65536)
    assert {*read.splitlines(keepends=True)} == {lines[0]}


def test_a_full_disk_is_one_line_and_what_it_cost_is_counted(caplog):
    caplog.set_level(logging.INFO)
    sink = Full()
    history, export = exporting(sink)
    for record in "abc":
        history.add([record])
        export.export(0)
    export.export(0)
    assert [each.message for each in caplog.records] == [
        "cannot export flow records: No space left on device; retrying"
    ]
    sink.room = True
    history.add(["d"])
    export.export(0)
    told, *lines = sink.lines
    assert (export.lost, lost_in(told), lines) == (3, 3, [b"3 d\n"])
    assert caplog.records[-1].message == "exporting flow records again"


def test_what_was_overwritten_before_is_reported_and_counted():
    sink = Full()
    sink.room = True
    history, export = exporting(sink, size=2)
    history.add(list("abcde"))
    export.export(0)
    told, *lines = sink.lines
    assert (lost_in(told), lines) == (3, [b"3 d\n", b"4 e\n"])
    assert export.lost == 3


def test_what_never_reached_the_history_is_told_with_the_time_in_between():
    sink, history, lost = Full(), FlowHistory[str](9), iter([2, 1, 0, 0])
    export = FlowExport(history, line, sink, "there", lambda: next(lost))
    export.export(0)
    sink.room = True
    export.export(0)
    history.add(["a"])
    export.export(0)
    told, *lines = sink.lines
    assert (lost_in(told), lines, export.lost) == (3, [b"0 a\n"], 0)
    found = read_flow(told)
    assert isinstance(found, LostFlows)
    assert found.since < found.time
    sink.room = False
    history.add(["b"])
    export.export(0)
    assert export.lost == 1


def test_a_disk_that_hangs_keeps_nobody_waiting():
    freed = threading.Event()

    class Hanging:
        def write(self, lines):
            freed.wait(10)

    history, export = exporting(Hanging())
    export.start()
    history.add(["a"])
    history.add(["b"])
    export.stop()
    freed.set()


@pytest.mark.parametrize("target", ["no/such/folder/flows", "."])
def test_a_place_that_cannot_be_written_is_an_oserror(tmp_path, monkeypatch, target):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OSError, match=r"No such file|Is a directory"):
        sink_for(target, 1000, 2).write([b"a\n"])


def test_a_dash_is_standard_output(capfdbinary):
    sink = sink_for("-", 1000, 2)
    assert isinstance(sink, StandardOutput)
    sink.write([json.dumps({"a": 1}).encode(), b"\n"])
    assert capfdbinary.readouterr().out == b'{"a": 1}\n'
