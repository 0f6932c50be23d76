# SPDX-License-Identifier: Apache-2.0
"""What lies where the pins are: the generation in force, older ones, what is no one's of ours."""

import os
from collections.abc import Iterator
from pathlib import Path

from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.dataplane.attach.tc import TCX_PIN
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.libc import BPF_FS_MAGIC, filesystem_type
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.programs import PROGRAMS
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
from ebpflb.dataplane.load.pins import LINKS, Generation, generations, newest_generation

CHECK = "pins"

_MARK, _UNFINISHED = "clsact_", "_new"
_START = "start the agent (`ebpflb run`), or name its --bpffs-root"
_REMOVED = "the agent removes it at its next start"


def check_pins(root: Path) -> list[Finding]:
    """Whether something is loaded, and what else lies there. OSError when it cannot be read."""
    if not root.is_dir():
        return [Finding(Severity.ERROR, CHECK, str(root), "nothing is loaded", _START)]
    if filesystem_type(root) != BPF_FS_MAGIC:
        return [Finding(Severity.ERROR, CHECK, str(root), "is on no bpffs", _START)]
    newest = newest_generation(root)
    if newest is None:
        missing = Finding(Severity.ERROR, CHECK, str(root), "nothing is loaded", _START)
        return [missing, *_others(root, None)]
    found = [*_newest(newest), *_others(root, newest), *_strangers(root)]
    return all_well(CHECK, f"generation {newest.directory.name} is in force", found)


def _newest(newest: Generation) -> Iterator[Finding]:
    place = str(newest.directory)
    if newest.layout != LAYOUT_VERSION:
        what = f"made by a version with map layout {newest.layout}, this one has {LAYOUT_VERSION}"
        yield Finding(Severity.ERROR, CHECK, place, what, "use the `ebpflb` of that version")
        return
    there = {path.name for path in (*newest.maps.iterdir(), *newest.progs.iterdir())}
    if missing := sorted({*MAPS, *PROGRAMS} - there):
        what = f"made by another version, without {examples(missing)}"
        yield Finding(Severity.ERROR, CHECK, place, what, "start the agent of this version")


def _others(root: Path, newest: Generation | None) -> Iterator[Finding]:
    for each in generations(root):
        if not each.is_complete:
            what = "left by a start that was interrupted, or made right now"
            yield Finding(Severity.NOTE, CHECK, str(each.directory), what, _REMOVED)
        elif newest and each.directory != newest.directory:
            what = "a generation that is no longer in force"
            yield Finding(Severity.NOTE, CHECK, str(each.directory), what, _REMOVED)


def _strangers(root: Path) -> Iterator[Finding]:
    own = {LINKS, *(each.directory.name for each in generations(root))}
    if names := sorted(set(os.listdir(root)) - own):
        what = f"has files of others: {examples(names)}"
        yield Finding(Severity.NOTE, CHECK, str(root), what, "`ebpflb cleanup` leaves them there")
    if names := sorted(name for name in os.listdir(root / LINKS) if not _is_link(name)):
        what = f"has links of another version: {examples(names)}"
        yield Finding(Severity.WARNING, CHECK, str(root / LINKS), what, "start the agent anew")


def _is_link(name: str) -> bool:
    name = name.removesuffix(_UNFINISHED)
    return name in CGROUP_HOOKS or bool(TCX_PIN.fullmatch(name)) or name.startswith(_MARK)
