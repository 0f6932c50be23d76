# SPDX-License-Identifier: Apache-2.0
import os
import platform
import stat
import threading

import pytest

from ebpflb.dataplane.load import compile_cache
from ebpflb.dataplane.load.bytecode import Bytecode, Map
from ebpflb.dataplane.load.compile_cache import DIRECTORY, FILES, find, held, keep, key, remove

NAME, OTHER = "a" * 64, "b" * 64
KEPT = Bytecode([Map("lb_a", True, 1, 4, 4, 8, 0)], {"lb_connect4": b"8 bytes." * 99})
CHANGED = Bytecode([], {"lb_connect4": b"others.."})


@pytest.fixture
def directory(tmp_path):
    """Where something is kept."""
    keep(tmp_path / "cache", NAME, KEPT)
    return tmp_path / "cache"


@pytest.fixture
def bcc(tmp_path, monkeypatch):
    """The folder of a bcc that cannot be imported."""
    folder = tmp_path / "path/bcc"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError\n")
    (folder / "version.py").write_text("__version__ = '1'\n")
    monkeypatch.syspath_prepend(folder.parent)
    return folder


# Names


def test_the_same_text_has_the_same_key(bcc):
    assert key("text", ["-DA=1"]) == key("text", ["-DA=1"])


@pytest.mark.parametrize(
    ("text", "flags"), [("texT", ["-DA=1"]), ("text", ["-DA=2"]), ("text", [])]
)
def test_another_text_or_flag_is_another_key(bcc, text, flags):
    assert key(text, flags) != key("text", ["-DA=1"])


def test_text_and_flags_do_not_run_into_each_other(bcc):
    assert len({key("a", ["b", "c"]), key("a", ["bc"]), key("ab", ["c"])}) == 3


def change_version(bcc, monkeypatch):
    (bcc / "version.py").write_text("__version__ = '2'\n")


def change_machine(bcc, monkeypatch):
    monkeypatch.setattr(platform, "machine", lambda: "another")


def change_format(bcc, monkeypatch):
    monkeypatch.setattr(compile_cache, "_FORMAT", b"another")


def change_header(bcc, monkeypatch):
    (bcc / "uapi").mkdir()
    (bcc / "uapi/types.h").write_text("another")
    monkeypatch.setattr(compile_cache, "bpf_directory", lambda: bcc)


@pytest.mark.parametrize("change", [change_version, change_machine, change_format, change_header])
def test_what_else_clang_depends_on_is_in_the_key(bcc, monkeypatch, change):
    before = key("text", [])
    change(bcc, monkeypatch)
    assert key("text", []) != before


def test_without_a_known_version_there_is_no_key(bcc):
    (bcc / "version.py").unlink()
    assert key("text", []) is None


def test_it_lies_where_the_system_keeps_caches():
    assert str(DIRECTORY) == "/var/cache/ebpflb"


# Keeping and finding


def test_what_is_kept_is_found(directory):
    assert find(directory, NAME) == KEPT
    assert find(directory, OTHER) is None


def test_it_is_made_for_its_user_alone(directory):
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert [path.name for path in directory.iterdir()] == [NAME]
    assert stat.S_IMODE((directory / NAME).stat().st_mode) == 0o600


def test_what_is_kept_again_replaces_what_was_there(directory):
    keep(directory, NAME, CHANGED)
    assert find(directory, NAME) == CHANGED


DAMAGES = {
    "empty": lambda content: content[:0],
    "truncated": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "one bit": lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    "another checksum": lambda content: content[:30] + bytes(4) + content[34:],
    "another format": lambda content: content.replace(b"bytecode 1", b"bytecode 0"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_none_and_is_replaced(directory, damage):
    path = directory / NAME
    path.write_bytes(damage(path.read_bytes()))
    assert find(directory, NAME) is None
    keep(directory, NAME, KEPT)
    assert find(directory, NAME) == KEPT


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_may_write_is_not_used(directory, mode):
    directory.chmod(mode)
    assert find(directory, NAME) is None
    keep(directory, OTHER, KEPT)
    assert not (directory / OTHER).exists()
    assert not remove(directory)


def test_a_directory_of_another_user_is_not_used(directory, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: directory.stat().st_uid + 1)
    assert find(directory, NAME) is None
    keep(directory, OTHER, KEPT)
    assert not (directory / OTHER).exists()


def test_a_file_that_others_may_write_is_not_used(directory):
    (directory / NAME).chmod(0o622)
    assert find(directory, NAME) is None


def test_links_are_not_followed(directory, tmp_path):
    (tmp_path / "link").symlink_to(directory)
    assert find(tmp_path / "link", NAME) is None
    (directory / OTHER).symlink_to(directory / NAME)
    assert find(directory, OTHER) is None


@pytest.mark.parametrize("place", ["file", "missing/cache"])
def test_where_no_directory_can_be_nothing_is_kept(tmp_path, place):
    (tmp_path / "file").touch()
    keep(tmp_path / place, NAME, KEPT)
    assert find(tmp_path / place, NAME) is None


def test_a_full_disk_leaves_nothing_half_written(directory, monkeypatch):
    def fail(*arguments, **places):
        raise OSError

    monkeypatch.setattr(os, "rename", fail)
    keep(directory, OTHER, KEPT)
    assert [path.name for path in directory.iterdir()] == [NAME]


def test_what_was_used_last_stays(directory):
    names = [f"{number:064}" for number in range(FILES)]
    os.utime(directory / NAME, (0, 0))
    for number, name in enumerate(names, start=1):
        keep(directory, name, CHANGED)
        os.utime(directory / name, (number, number))
    assert not (directory / NAME).exists()
    assert find(directory, names[0]) == CHANGED
    keep(directory, OTHER, CHANGED)
    assert {path.name for path in directory.iterdir()} == {OTHER, *names} - {names[1]}


def test_readers_and_writers_at_once_see_whole_files(directory):
    def write():
        for _ in range(50):
            keep(directory, NAME, KEPT)

    found = []
    writers = [threading.Thread(target=write) for _ in range(3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        found.append(find(directory, NAME))
    assert found
    assert all(each == KEPT for each in found)


# Removing


def test_the_flows_there_are_left_alone_but_not_by_a_removal(directory):
    kept = directory / "flows" / "1.jsonl.gz"
    kept.parent.mkdir()
    kept.touch()
    os.utime(kept.parent, (0, 0))
    for number in range(FILES + 1):
        keep(directory, f"{number:064}", CHANGED)
    assert kept.exists()
    assert len([*directory.iterdir()]) == 1 + FILES
    assert remove(directory)
    assert not directory.exists()


def test_it_is_removed_once(directory):
    assert remove(directory)
    assert not directory.exists()
    assert not remove(directory)


def test_it_stays_while_an_agent_runs(directory, tmp_path):
    with held(directory), held(directory):
        assert not remove(directory)
        assert find(directory, NAME) == KEPT
    assert remove(directory)
    with held(directory):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    with held(tmp_path / "no" / "directory"):
        assert not (tmp_path / "no").exists()
