# SPDX-License-Identifier: Apache-2.0
"""A stored state is used only if it is of the same cluster, recent, intact, and owned by this
user.
"""

import gzip
import os
import stat
from collections.abc import Callable
from errno import ENOSPC
from pathlib import Path

import pytest

from ebpflb.errors import SourceError
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.source.state_file import StateFile
from tests.builders import endpoint, endpoint_slice, node, service

ORIGIN = {"API server": "https://10.0.0.1:6443", "certificate authority": "ab", "node": "node-a"}
OBJECTS: list[ApiObject] = [service(), endpoint_slice("web-1", endpoint()), node()]
HOUR = 3600.0
NOW = 1_000_000.0


def nothing() -> None:
    """No pause."""


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    """Written now."""
    found = StateFile(tmp_path / "cache/state.gz", ORIGIN)
    found.write(OBJECTS, NOW, nothing)
    return found


def refusal(file: StateFile, now: float = NOW) -> str:
    with pytest.raises(SourceError) as caught:
        file.read(HOUR, now)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{file.path}: ")


def test_what_was_kept_is_read(file: StateFile):
    assert file.read(HOUR, NOW + HOUR) == (OBJECTS, NOW, [])


def test_it_is_for_its_user_alone(file: StateFile):
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700


def test_it_is_as_old_as_its_last_stamp(file: StateFile):
    too_old = f"it is {HOUR + 1:.0f} s old, and --state-cache-max-age is 3600 s"
    assert refusal(file, NOW + HOUR + 1) == too_old
    file.stamp(NOW + 1)
    assert file.read(HOUR, NOW + HOUR + 1).as_of == NOW + 1


def test_a_clock_that_is_behind_makes_nothing_young(file: StateFile):
    assert file.read(HOUR, NOW - 60).objects == OBJECTS
    assert refusal(file, NOW - 61) == "it is 61 s in the future: check the clock"


def test_a_new_one_takes_the_place_of_the_old_one(file: StateFile):
    file.path.with_name("state.gz.new").write_text("of an agent that was killed")
    file.write([node()], NOW + 1, nothing)
    assert file.read(HOUR, NOW) == ([node()], NOW + 1, [])
    assert [each.name for each in file.path.parent.iterdir()] == ["state.gz"]


def test_an_interrupted_write_leaves_the_old_one(file: StateFile):
    def interrupt() -> None:
        raise OSError(ENOSPC, "no space")

    with pytest.raises(OSError, match="no space"):
        file.write(OBJECTS * 100, NOW + 1, interrupt)
    assert file.read(HOUR, NOW) == (OBJECTS, NOW, [])
    assert [each.name for each in file.path.parent.iterdir()] == ["state.gz"]


@pytest.mark.parametrize("what", list(ORIGIN))
def test_what_is_of_another_cluster_or_node_is_refused(file: StateFile, what: str):
    other = StateFile(file.path, {**ORIGIN, what: "other"})
    assert refusal(other) == f"it has another {what}: {ORIGIN[what]}, not other"


def test_labels_that_were_not_kept_cannot_be_asked_for(file: StateFile):
    other = StateFile(file.path, ORIGIN, {"team"})
    assert refusal(other) == "it has another label selectors: [], not ['team']"


def test_what_was_not_kept_is_named(tmp_path: Path):
    assert refusal(StateFile(tmp_path / "none/state.gz", ORIGIN)) == "nothing was kept there"
    assert refusal(StateFile(tmp_path / "state.gz", ORIGIN)) == "nothing was kept there"


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda content: content[:-1],
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "one bit": lambda content: content[:-60] + bytes([content[-60] ^ 1]) + content[-59:],
    "another checksum": lambda content: content[:-8] + bytes(4) + content[-4:],
    "more": lambda content: content + b"more",
    "not JSON": lambda _: gzip.compress(b"{\n"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_is_refused(file: StateFile, damage: Callable[[bytes], bytes]):
    file.path.write_bytes(damage(file.path.read_bytes()))
    os.utime(file.path, (NOW, NOW))
    assert refusal(file).startswith("it is damaged: ")


def test_no_header_is_not_the_right_one(file: StateFile):
    file.path.write_bytes(gzip.compress(b"[]\n"))
    os.utime(file.path, (NOW, NOW))
    assert refusal(file) == "it has another API server: None, not https://10.0.0.1:6443"


def test_an_object_that_cannot_be_read_costs_itself_alone(file: StateFile):
    lines = gzip.decompress(file.path.read_bytes()).splitlines()
    lines[1] = lines[1].replace(b'"port":80', b'"port":-1')
    lines[3:3] = [b"{", b'{"kind":"Secret"}']
    file.path.write_bytes(gzip.compress(b"\n".join(lines)))
    os.utime(file.path, (NOW, NOW))
    found = file.read(HOUR, NOW)
    assert found.objects == OBJECTS[1:]
    port = "Service default/web: spec.ports[0].port: must be a whole number from 1 to 65535, not -1"
    assert found.left_out[0] == port
    assert len(found.left_out) == 2


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_what_others_may_write_is_refused(file: StateFile, mode: int):
    file.path.chmod(mode)
    assert refusal(file) == "others may write there"


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o1777])
def test_what_lies_where_others_may_write_is_neither_read_nor_written(file: StateFile, mode: int):
    file.path.parent.chmod(mode)
    assert refusal(file) == "others may write there"
    with pytest.raises(PermissionError):
        file.write(OBJECTS, NOW, nothing)
    with pytest.raises(PermissionError):
        file.stamp(NOW)


def test_what_is_anothers_is_refused(file: StateFile, monkeypatch: pytest.MonkeyPatch):
    owner = file.path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert refusal(file) == "others may write there"


def test_no_link_is_followed(file: StateFile, tmp_path: Path):
    moved = file.path.rename(tmp_path / "elsewhere")
    file.path.symlink_to(moved)
    assert refusal(file) == "Too many levels of symbolic links"
    file.path.unlink()
    moved.rename(file.path)
    linked = tmp_path / "linked"
    linked.symlink_to(file.path.parent)
    assert "Not a directory" in refusal(StateFile(linked / "state.gz", ORIGIN))


def test_what_is_no_file_is_refused_at_once(file: StateFile):
    file.path.unlink()
    os.mkfifo(file.path, 0o600)
    os.utime(file.path, (NOW, NOW))
    assert refusal(file).startswith("it is damaged: ")
