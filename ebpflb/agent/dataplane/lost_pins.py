# SPDX-License-Identifier: Apache-2.0
"""Pins of the generation in force that somebody has removed: the agent holds what was pinned."""

import logging
from collections.abc import Mapping
from pathlib import Path

from ebpflb.dataplane.attach.hooks import Hooks
from ebpflb.dataplane.kernel.maps import KernelMap, MapSet
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.log import fields

_log = logging.getLogger("ebpflb.agent")


class LostPins:
    """Of one generation. `is_complete`, in its methods: whether all hooks have moved to it."""

    def __init__(self, pins: Pins, generation: Generation, maps: MapSet, hooks: Hooks) -> None:
        self._pins = pins
        self._generation = generation
        self._hooks = hooks
        kept = {name: each.fd for name, each in maps.items() if isinstance(each, KernelMap)}
        # Descriptors by their pins.
        self._objects: Mapping[Path, int] = {
            **{generation.maps / name: fd for name, fd in kept.items()},
            **{path: program.fd for path, program in hooks.programs.items()},
        }

    def are_there(self, *, is_complete: bool) -> bool:
        """Whether any pin is missing, those of links included."""
        expected = [*self._objects, *([self._generation.complete] if is_complete else [])]
        return not self._pins.are_intact(expected) or bool(self._hooks.links.unpinned())

    def restore(self, *, is_complete: bool) -> None:
        """Pin maps, programs and links again. PinError."""
        if not self.are_there(is_complete=is_complete):
            return
        _log.warning("pins were removed, pinning them again", extra=fields(at=self._pins.root))
        self._pins.restore({**self._objects, **self._hooks.links.objects()})
        if is_complete:
            self._pins.commit(self._generation)
