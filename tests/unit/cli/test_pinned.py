# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from ebpflb.cli.pinned import open_pins
from ebpflb.dataplane.kernel import maps as opening
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
from ebpflb.dataplane.load import pins
from ebpflb.dataplane.load.pins import Generation
from ebpflb.errors import PinError
from tests.memory_maps import MapShape, MemoryHash, memory_maps

ROOT = Path("/pins")


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch):
    """Have these maps be there, in a generation of this layout."""

    def pin(maps):
        generation = Generation(1, LAYOUT_VERSION, ROOT / "1-1")
        monkeypatch.setattr(pins, "newest_generation", lambda _: generation)
        monkeypatch.setattr(opening, "open_maps", lambda _: maps)
        return generation

    return pin


def test_what_this_version_has_pinned_is_opened(pinned):
    maps = memory_maps()
    generation = pinned(maps)
    assert open_pins(ROOT) == (generation, maps)


def test_pins_with_a_map_of_another_shape_are_refused_in_one_line(pinned):
    pinned({**memory_maps(), "lb_slots": MemoryHash("lb_slots", MapShape(MapType.HASH, 3, 5, 7))})
    with pytest.raises(PinError, match=r"^/pins/1-1: lb_slots: not made by this version: restart"):
        open_pins(ROOT)


def test_pins_without_a_map_that_this_version_reads_are_refused_in_one_line(pinned):
    maps = dict(memory_maps())
    del maps["lb_src_ranges"]
    pinned(maps)
    with pytest.raises(PinError, match=r"^/pins/1-1: made by another version, without lb_src_ra"):
        open_pins(ROOT)


@pytest.mark.parametrize(
    ("user", "hint"), [(0, ""), (65534, " (only root may read the maps: use sudo)")]
)
def test_who_is_not_root_is_told(monkeypatch, user, hint):
    monkeypatch.setattr("os.geteuid", lambda: user)

    def refused(_):
        raise PinError("/pins: Permission denied")

    monkeypatch.setattr(pins, "newest_generation", refused)
    with pytest.raises(PinError) as error:
        open_pins(ROOT)
    assert str(error.value) == f"/pins: Permission denied{hint}"
