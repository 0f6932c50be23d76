# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.doctor import pins
from ebpflb.dataplane.kernel.libc import BPF_FS_MAGIC
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
from tests.memory_maps import MapShape, MemoryHash, memory_maps

IN_FORCE = f"{LAYOUT_VERSION}-7"


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Pins as an agent leaves them, in an ordinary directory."""
    monkeypatch.setattr(pins, "filesystem_type", lambda _: BPF_FS_MAGIC)
    monkeypatch.setattr(pins, "open_maps", lambda _: memory_maps())
    make(tmp_path, IN_FORCE)
    (tmp_path / "links").mkdir()
    for name in ("lb_connect4", "tcx_ingress_3", "tcx_egress_3_new", "xdp_native_3"):
        (tmp_path / "links" / name).touch()
    (tmp_path / "links/clsact_4").mkdir()
    return tmp_path


def make(root, name, *, complete=True):
    for kind, names in (("maps", MAPS), ("progs", PROGRAMS)):
        (root / name / kind).mkdir(parents=True)
        for each in names:
            (root / name / kind / each).touch()
    if complete:
        (root / name / "complete").mkdir()


def found(root):
    return [(str(e.severity), e.where, e.what) for e in pins.check_pins(root)]


def test_pins_as_an_agent_leaves_them_are_well(root):
    assert found(root) == [("ok", "", f"generation {IN_FORCE} is in force")]


def test_no_directory_no_bpffs_and_no_generation_mean_that_nothing_is_loaded(root, monkeypatch):
    assert found(root / "x") == [("error", str(root / "x"), "nothing is loaded")]
    (root / IN_FORCE / "complete").rmdir()
    (error, note) = found(root)
    assert error == ("error", str(root), "nothing is loaded")
    assert note[:2] == ("note", str(root / IN_FORCE))
    monkeypatch.setattr(pins, "filesystem_type", lambda _: 0)
    assert found(root) == [("error", str(root), "is not on a bpffs")]


def test_a_map_of_another_shape_is_an_error(root, monkeypatch):
    other = MemoryHash("lb_frontends", MapShape(MapType.HASH, 3, 5, 7))
    maps = {**memory_maps(), "lb_frontends": other}
    monkeypatch.setattr(pins, "open_maps", lambda _: maps)
    what = "not made by this version: lb_frontends"
    assert found(root) == [("error", str(root / IN_FORCE), what)]


def test_another_layout_and_missing_maps_are_errors(root):
    (root / IN_FORCE / "maps/lb_slots").unlink()
    assert found(root) == [
        ("error", str(root / IN_FORCE), "made by another version, without lb_slots")
    ]
    make(root, "99-8")
    what = f"made by a version with map layout 99, this one has {LAYOUT_VERSION}"
    assert found(root)[0] == ("error", str(root / "99-8"), what)


def test_what_else_lies_there_is_reported(root):
    make(root, f"{LAYOUT_VERSION}-5")
    make(root, f"{LAYOUT_VERSION}-8", complete=False)
    (root / "theirs").touch()
    (root / "links/lb_bind4").touch()
    (old, unfinished, foreign, link) = found(root)
    assert old == (
        *("note", str(root / f"{LAYOUT_VERSION}-5")),
        "a generation that is no longer in force",
    )
    assert unfinished[2] == "left by an interrupted start, or being created"
    assert foreign == ("note", str(root), "has foreign files: theirs")
    assert link == ("warning", str(root / "links"), "has links of another version: lb_bind4")
