# SPDX-License-Identifier: Apache-2.0
"""The pins: the generation in force, older ones, other files; and how full the maps are."""

import os
from collections.abc import Iterator
from pathlib import Path

from ebpflb.dataplane.attach.hooks import is_link_of_ours
from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well, examples
from ebpflb.dataplane.kernel.libc import BPF_FS_MAGIC, filesystem_type
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.layout.capacity import MAPS, misfits
from ebpflb.dataplane.layout.programs import PROGRAMS, XDP_PROGRAM
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION
from ebpflb.dataplane.load.pins import LINKS, Generation, generations, newest_generation
from ebpflb.dataplane.view.dump import used_entries

CHECK = "pins"
FILL = "maps"

_START = "start the agent (`ebpflb run`), or set --bpffs-root to its directory"
_REMOVED = "the agent removes it at its next start"
_REPLACED = "restart the agent, which replaces what somebody else has pinned there"
_MUCH = 0.8
_GROWS = "the agent enlarges it when it is full, or when it next starts"
_MORE_FLOWS = (
    "when it is full, new flows stay in lb_ct_short and are forgotten after 4 idle minutes: give "
    "the agent a larger --conntrack-min or --conntrack-max-per-core, and restart it"
)
_MORE_STREAMS = (
    "when it is full, new UDP streams stay in lb_ct_udp and are forgotten after 30 idle seconds: "
    "give the agent a larger --conntrack-min, and reboot the node"
)
# Full of ended flows, which a busy node has many of, and of half-open ones during a flood.
_EVICTING = ("lb_ct_short", "lb_ct_udp", "lb_ct_dsr", "lb_fragments", "lb_client_uses")
_OLDEST = (
    "usual where many connections end; the least recently used entry is evicted; `ebpflb maps "
    "dump NAME` shows who uses it"
)
_CLIENTS = "when it is full, a client that has opened nothing for the longest time begins anew"
_NOT_KEPT = (
    "when it is full, new sockets are translated but not tracked, and new clients have no session "
    "affinity; `ebpflb maps dump NAME` shows who uses it"
)
_ADVICE = {
    **dict.fromkeys(("lb_frontends", "lb_descs", "lb_slots", "lb_backends", "lb_names"), _GROWS),
    **dict.fromkeys(("lb_addrs", "lb_src_ranges", "lb_limits"), _GROWS),
    "lb_conntrack": _MORE_FLOWS,
    "lb_ct_stream": _MORE_STREAMS,
    **dict.fromkeys(_EVICTING, _OLDEST),
    "lb_client_uses": _CLIENTS,
    **dict.fromkeys(("lb_sockets", "lb_connections", "lb_affinity"), _NOT_KEPT),
    "lb_subnets": "further subnets are masqueraded with the first address of their device",
    **dict.fromkeys(("lb_devices", "lb_netns"), "no more devices or pods can be served"),
}


def check_pins(root: Path) -> list[Finding]:
    """Whether anything is loaded, and what else is there. OSError if it cannot be read."""
    if not root.is_dir():
        return [Finding(Severity.ERROR, CHECK, str(root), "nothing is loaded", _START)]
    if filesystem_type(root) != BPF_FS_MAGIC:
        return [Finding(Severity.ERROR, CHECK, str(root), "is not on a bpffs", _START)]
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
    if missing := sorted({*MAPS, *PROGRAMS} - {XDP_PROGRAM} - there):
        what = f"made by another version, without {examples(missing)}"
        yield Finding(Severity.ERROR, CHECK, place, what, "start the agent of this version")
    elif wrong := misfits(open_maps(newest.maps)):
        what = f"not made by this version: {examples(wrong)}"
        yield Finding(Severity.ERROR, CHECK, place, what, _REPLACED)


def _others(root: Path, newest: Generation | None) -> Iterator[Finding]:
    for each in generations(root):
        if not each.is_complete:
            what = "left by an interrupted start, or being created"
            yield Finding(Severity.NOTE, CHECK, str(each.directory), what, _REMOVED)
        elif newest and each.directory != newest.directory:
            what = "a generation that is no longer in force"
            yield Finding(Severity.NOTE, CHECK, str(each.directory), what, _REMOVED)


def _strangers(root: Path) -> Iterator[Finding]:
    own = {LINKS, *(each.directory.name for each in generations(root))}
    if names := sorted(set(os.listdir(root)) - own):
        what = f"has foreign files: {examples(names)}"
        yield Finding(Severity.NOTE, CHECK, str(root), what, "`ebpflb cleanup` leaves them there")
    if names := sorted(name for name in os.listdir(root / LINKS) if not _is_ours(name)):
        what = f"has links of another version: {examples(names)}"
        yield Finding(Severity.WARNING, CHECK, str(root / LINKS), what, "restart the agent")


def _is_ours(name: str) -> bool:
    return is_link_of_ours(name) or name.startswith("clsact_")


def check_maps(maps: MapSet) -> list[Finding]:
    """A warning for each map above 80 %, or a note if it evicts entries. MapError."""
    used = {name: used_entries(maps, name) for name in _ADVICE}
    shares = {name: count / maps[name].max_entries for name, count in used.items()}
    found = []
    for name, share in shares.items():
        if share > _MUCH:
            what = f"{share:.0%} full: {used[name]} of {maps[name].max_entries}"
            severity = Severity.NOTE if name in _EVICTING else Severity.WARNING
            found.append(Finding(severity, FILL, name, what, _ADVICE[name]))
    fullest = max(shares, key=lambda name: shares[name])
    return all_well(FILL, f"the fullest is {fullest}, {shares[fullest]:.0%}", found)
