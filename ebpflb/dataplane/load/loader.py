# SPDX-License-Identifier: Apache-2.0
"""From C files to pinned maps and programs, and from one generation to the next.

A generation whose source, settings and layout match is used as it is: nothing is compiled.
Otherwise a new one is made beside it (takeover.py); the hooks move over one by one, and then the
old one goes.
"""

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.layout.capacity import Sizes
from ebpflb.dataplane.layout.map_specs import MAPS
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.load.compile import compile_and_pin
from ebpflb.dataplane.load.handover import (
    copy_flows,
    copy_maps,
    read_meta,
    share_maps,
    shared_maps,
    write_meta,
)
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.dataplane.load.source_text import source_hash, source_text

Compile = Callable[[str, Mapping[str, str], Path], None]


class Loader:
    """Makes generations. Errors: CompileError, LoadError, ProbeError, PinError, MapError."""

    def __init__(
        self,
        pins: Pins,
        *,
        has_set_retval: bool,
        has_coarse_clock: bool = True,
        has_sock_ops: bool = True,
        compiler: Compile | None = None,
    ) -> None:
        """What the kernel has: bpf_set_retval refuses at the socket, the coarse clock is faster.

        Without sock_ops the program of that name is not loaded.
        """
        self._pins = pins
        self._features = {
            "LB_HAS_SET_RETVAL": str(int(has_set_retval)),
            "LB_HAS_COARSE_CLOCK": str(int(has_coarse_clock)),
            "LB_HAS_SOCK_OPS": str(int(has_sock_ops)),
        }
        names = [name for name in PROGRAMS if has_sock_ops or name != "lb_sock_ops"]
        self._compile = compiler or partial(compile_and_pin, names=names)

    def load(self, sizes: Sizes) -> Generation:
        """The current generation if it is what a compile would give, else a new one.

        A new one is not the current one yet: write its maps, move the hooks, call `finish()`.
        Maps never shrink.
        """
        current = self._pins.current()
        if current is None:
            return self._make(None, sizes)
        sizes = sizes.at_least(pinned_sizes(current))
        meta = read_meta(current)
        if meta and bytes(meta.source) == self._digest(source_text(), sizes):
            return current
        return self._make(current, sizes)

    def finish(self, generation: Generation) -> None:
        """All hooks run `generation`: take over the last flows and remove the others."""
        current = self._pins.current()
        if current and current != generation:
            copy_flows(current, generation, shared_maps(current, generation))
        self._pins.commit(generation)
        self._pins.remove_others(generation)

    def _make(self, current: Generation | None, sizes: Sizes) -> Generation:
        generation = self._pins.create()
        # Their numbers count until here, their memory must not pile up.
        self._pins.remove_unfinished(generation)
        try:
            self._fill(generation, current, sizes)
        except BaseException:
            self._pins.remove(generation)
            raise
        return generation

    def _fill(self, generation: Generation, current: Generation | None, sizes: Sizes) -> None:
        text = source_text()
        shared = share_maps(current, generation, sizes) if current else frozenset()
        defines = {**self._settings(sizes), "LB_PIN_MAPS": f'"{generation.maps}"'}
        self._compile(text, defines, generation.progs)
        if current:
            copy_maps(current, generation, shared)
        write_meta(generation, self._digest(text, sizes))

    def _digest(self, text: str, sizes: Sizes) -> bytes:
        return source_hash(text, self._settings(sizes))

    def _settings(self, sizes: Sizes) -> dict[str, str]:
        return {**sizes.defines(), **self._features}


def pinned_sizes(generation: Generation) -> Sizes:
    """The sizes of a generation's maps; the default where it lacks a map of this layout."""
    found: dict[str, int] = {}
    for name, spec in MAPS.items():
        path = generation.maps / name
        if isinstance(spec.size, str) and path.exists():
            found.setdefault(spec.size, _entries(path))
    return Sizes(**found)


def _entries(path: Path) -> int:
    fd = libbpf.obj_get(path)
    try:
        return int(libbpf.map_info(fd).max_entries)
    finally:
        os.close(fd)
