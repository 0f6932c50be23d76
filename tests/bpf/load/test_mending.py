# SPDX-License-Identifier: Apache-2.0
"""A start with pins that somebody else has removed or replaced."""

import os
import shutil
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.maps import open_maps
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout.capacity import FLOW_MAPS, MAPS
from ebpflb.dataplane.load.pins import Generation
from tests.bpf.attach import tiny
from tests.bpf.load.loading import USED, finish, load, refuse, start

UNUSED = "lb_settings"


def map_id(path: Path) -> int:
    with owned(libbpf.obj_get(path)) as fd:
        return int(libbpf.map_info(fd).id)


def pin_map(path: Path) -> None:
    """Pin a different map, of a different shape."""
    with owned(libbpf.map_create(MapType.HASH, "theirs", 3, 5, 7)) as fd:
        libbpf.obj_pin(fd, path)


def pin_program(path: Path) -> None:
    program = tiny.load(0)
    libbpf.obj_pin(program.fd, path)
    program.close()


def nothing(path: Path) -> None:
    """Only remove pins."""


WRONG = {"nothing": nothing, "map": pin_map, "program": pin_program, "directory": os.mkdir}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_map_that_programs_use_is_pinned_again(root, wrong):
    first = start(root)
    before = map_id(first.maps / USED)
    (first.maps / USED).unlink()
    WRONG[wrong](first.maps / USED)
    assert load(root, compiler=refuse) == first
    assert map_id(first.maps / USED) == before


@pytest.mark.parametrize("place", [f"maps/{UNUSED}", "progs/lb_connect4"])
@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_put_back_costs_a_new_generation_and_no_flow(root, place, wrong):
    first = start(root)
    flows = {name: map_id(first.maps / name) for name in FLOW_MAPS}
    (first.directory / place).unlink()
    WRONG[wrong](first.directory / place)
    second = load(root)
    finish(root, second)
    assert second != first
    assert is_usable(second)
    assert {name: map_id(second.maps / name) for name in FLOW_MAPS} == flows
    assert load(root, compiler=refuse) == second


@pytest.mark.parametrize("kind", [MapType.HASH, MapType.RINGBUF])
def test_a_map_in_the_place_of_the_note_is_no_note(root, kind):
    first = start(root)
    (first.maps / "lb_meta").unlink()
    sizes = (3, 5, 7) if kind is MapType.HASH else (0, 0, 4096)
    with owned(libbpf.map_create(kind, "theirs", *sizes)) as fd:
        libbpf.obj_pin(fd, first.maps / "lb_meta")
    second = load(root)
    finish(root, second)
    assert second != first
    assert is_usable(second)


@pytest.mark.parametrize("place", ["maps", "progs", "maps progs"])
def test_a_generation_that_lost_everything_is_replaced(root, place):
    first = start(root)
    for directory in place.split():
        shutil.rmtree(first.directory / directory)
    second = load(root)
    finish(root, second)
    assert is_usable(second)
    assert root.current() == second


def test_a_foreign_map_next_to_the_pins_is_not_touched(root):
    first = start(root)
    pin_map(first.maps / "theirs")
    assert load(root, compiler=refuse) == first


def test_a_pin_named_like_a_generation_is_ignored(root):
    pin_map(root.root / "1-7")
    assert start(root).number == 1
    (root.root / "1-7").unlink()


def is_usable(generation: Generation) -> bool:
    return open_maps(generation.maps).keys() == MAPS.keys()
