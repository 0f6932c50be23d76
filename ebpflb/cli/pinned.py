# SPDX-License-Identifier: Apache-2.0
"""Open the pins for reading, without a lock or an agent."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ebpflb.config.options import BPFFS_ROOT
from ebpflb.config.settings import setting
from ebpflb.errors import PinError

if TYPE_CHECKING:
    from ebpflb.dataplane.kernel.maps import MapSet
    from ebpflb.dataplane.load.pins import Generation

bpffs_option: Callable[[Any], Any] = click.option(
    "--bpffs-root",
    metavar="DIR",
    help=f"Directory of the pins, as given to `ebpflb run`.  [{BPFFS_ROOT}]",
)


def pin_root(flag: str | None) -> Path:
    """Where the pins are, by flag or environment."""
    root: Path = setting("bpffs-root", flag, os.environ)
    return root


def open_pins(root: Path) -> "tuple[Generation, MapSet]":
    """The generation in force and its maps. PinError if this user or version can read none."""
    try:
        return _opened(root)
    except PinError as error:
        if os.geteuid() == 0:
            raise
        raise PinError(f"{error} (only root may read the maps: use sudo)") from error


def _opened(root: Path) -> "tuple[Generation, MapSet]":
    from ebpflb.dataplane.kernel.maps import open_maps
    from ebpflb.dataplane.layout.capacity import MAPS, misfits
    from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
    from ebpflb.dataplane.load.pins import newest_generation

    generation = newest_generation(root)
    if generation is None:
        raise PinError(f"nothing is loaded at {root}: is `ebpflb run` using another --bpffs-root?")
    if generation.layout != LAYOUT_VERSION:
        raise PinError(
            f"{generation.directory}: made by a version with map layout {generation.layout}, this "
            f"one reads {LAYOUT_VERSION}: use the `ebpflb` of that version"
        )
    maps = open_maps(generation.maps)
    if missing := sorted(MAPS.keys() - maps.keys()):
        raise PinError(
            f"{generation.directory}: made by another version, without {', '.join(missing)}: use "
            "the `ebpflb` of that version, or start the agent of this one"
        )
    if wrong := misfits(maps):
        raise PinError(
            f"{generation.directory}: {', '.join(wrong)}: not made by this version: restart the "
            "agent, which replaces what somebody else has pinned there"
        )
    return generation, maps
