# SPDX-License-Identifier: Apache-2.0
"""The pins of a generation, after somebody else has removed or replaced some.

Its programs hold the maps that they use, whatever is pinned: those are pinned again. Anything else
in the place of a map or a program is removed, and then missing like a pin that was removed.
"""

import os
from pathlib import Path

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.uapi import BpfObject
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.load.pins import Generation, remove_pin
from ebpflb.errors import PinError


def mend(generation: Generation) -> None:
    """Put back the maps that its programs use, and remove what is no map or program. PinError."""
    try:
        for directory in (generation.maps, generation.progs):
            directory.mkdir(exist_ok=True)
        used: set[int] = set()
        for path in list(generation.progs.iterdir()):
            used.update(_maps_of(path))
        for path in list(generation.maps.iterdir()):
            _remove_foreign(path)
        for identity in used:
            _put_back(generation, identity)
    except OSError as error:
        raise PinError(f"{error.filename or generation.directory}: {error.strerror}") from error


def _maps_of(path: Path) -> list[int]:
    """The ids of the maps that a pinned program uses; what is not that program is removed."""
    try:
        with owned(libbpf.obj_get(path, BpfObject.PROGRAM)) as program:
            if libbpf.prog_info(program).name.decode() == path.name:
                return libbpf.prog_maps(program)
    except libbpf.NotPinnedError:
        pass
    remove_pin(path)
    return []


def _remove_foreign(path: Path) -> None:
    try:
        os.close(libbpf.obj_get(path, BpfObject.MAP))
    except libbpf.NotPinnedError:
        remove_pin(path)


def _put_back(generation: Generation, identity: int) -> None:
    with owned(libbpf.map_by_id(identity)) as wanted:
        name = libbpf.map_info(wanted).name.decode()
        path = generation.maps / name
        if name not in MAPS:
            return
        if path.exists():
            with owned(libbpf.obj_get(path, BpfObject.MAP)) as found:
                if libbpf.map_info(found).id == identity:
                    return
            remove_pin(path)
        libbpf.obj_pin(wanted, path)
