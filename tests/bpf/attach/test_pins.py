# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import libbpf, libc
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
from ebpflb.dataplane.load import pins
from ebpflb.dataplane.load.pins import Pins, newest_generation
from ebpflb.errors import PinError


@pytest.fixture
def root(bpffs: Path) -> Path:
    return bpffs / "node"


def pin_a_map(path: Path) -> None:
    fd = libbpf.map_create(MapType.ARRAY, "lb_test", 4, 4, 1)
    libbpf.obj_pin(fd, path)
    os.close(fd)


def test_a_bpffs_is_mounted_where_there_is_none_and_unmounted_with_the_pins(unmounted):
    with Pins(unmounted) as held:
        pin_a_map(held.links / "x")
        assert unmounted.is_mount()
    Pins(unmounted).remove_all()
    assert not unmounted.exists()
    assert libc.filesystem_type(unmounted.parent) != libc.BPF_FS_MAGIC


def test_below_sys_fs_bpf_it_is_mounted_there():
    script = """
from pathlib import Path
from ebpflb.dataplane.kernel import libc
from ebpflb.dataplane.load.pins import BPFFS, Pins
while libc.filesystem_type(BPFFS) == libc.BPF_FS_MAGIC:
    libc.unmount(BPFFS)
root = BPFFS / "some" / "node"
Pins(root).close()
assert BPFFS.is_mount() and not root.is_mount()
Pins(root).remove_all()
assert BPFFS.is_mount() and not root.exists()
"""
    subprocess.run(["unshare", "--mount", sys.executable, "-c", script], check=True)


def test_a_mount_that_fails_is_explained(tmp_path, monkeypatch):
    def refuse(path, source):
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(libc, "mount_bpffs", refuse)
    with pytest.raises(PinError) as caught:
        Pins(tmp_path / "node")
    assert str(caught.value) == (
        f"{tmp_path}/node: no bpffs there, and mounting one failed (Operation not permitted): "
        f"run `mount -t bpf bpf {tmp_path}/node` as root"
    )


def test_a_second_agent_is_refused_until_the_first_is_gone(root):
    with Pins(root), pytest.raises(PinError, match=f"{root}: another agent uses these pins"):
        Pins(root)
    Pins(root).close()


def test_pins_in_use_are_not_removed(root):
    with Pins(root) as held:
        pin_a_map(held.links / "x")
        with pytest.raises(PinError, match="another agent"):
            Pins(root).remove_all()
        assert (held.links / "x").exists()


def test_a_fresh_node_has_no_generation(root):
    with Pins(root) as held:
        assert held.current() is None
    assert newest_generation(root / "nowhere") is None


def test_a_generation_counts_once_it_is_complete(root):
    with Pins(root) as held:
        first = held.create()
        pin_a_map(first.maps / "lb_test")
        assert held.current() is None
        held.commit(first)
        assert held.current() == first
        second = held.create()
        assert held.current() == newest_generation(root) == first
        held.commit(second)
        held.commit(second)
        assert held.current() == second


def test_the_numbers_of_interrupted_starts_are_not_used_again(root):
    with Pins(root) as held:
        numbers = [held.create().number for _ in range(3)]
        assert numbers == [1, 2, 3]


def test_older_and_unfinished_generations_are_removed(root):
    with Pins(root) as held:
        generations = [held.create() for _ in range(4)]
        pin_a_map(generations[0].maps / "lb_test")
        held.commit(generations[0])
        held.commit(generations[2])
        held.remove_others(generations[2])
        assert sorted(path.name for path in root.iterdir()) == [f"{LAYOUT_VERSION}-3", "links"]
        assert held.current() == generations[2]


def test_pins_of_a_newer_layout_are_refused(root):
    with Pins(root) as held:
        held.commit(held.create())
        newer = root / f"{LAYOUT_VERSION + 1}-2"
        (newer / "complete").mkdir(parents=True)
        with pytest.raises(PinError, match=rf"{newer}: made by a newer version \(map layout"):
            held.current()


def test_pins_of_an_older_layout_are_current_until_there_are_newer_ones(root, monkeypatch):
    with Pins(root) as held:
        older = held.create()
        held.commit(older)
        monkeypatch.setattr(pins, "LAYOUT_VERSION", LAYOUT_VERSION + 1)
        assert held.current() == older
        newer = held.create()
        assert (newer.layout, newer.number) == (LAYOUT_VERSION + 1, 2)
        held.commit(newer)
        assert held.current() == newer


def test_everything_is_removed(root):
    with Pins(root) as held:
        pin_a_map(held.links / "x")
        generation = held.create()
        pin_a_map(generation.maps / "lb_test")
        held.commit(generation)
    (root / f"{LAYOUT_VERSION + 1}-7" / "maps").mkdir(parents=True)
    Pins(root).remove_all()
    assert not root.exists()


def test_foreign_pins_next_to_ebpflbs_are_not_touched(root):
    with Pins(root) as held:
        held.commit(held.create())
        pin_a_map(root / "theirs")
    Pins(root).remove_all()
    assert [path.name for path in root.iterdir()] == ["theirs"]
