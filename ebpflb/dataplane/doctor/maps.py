# SPDX-License-Identifier: Apache-2.0
"""How full the maps are whose fill depends on the cluster or on the traffic."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.view.capacity import used_entries

CHECK = "maps"

_MUCH = 0.8
_GROWS = "the agent makes a larger one when this one is full, as does its next start"
_MORE_FLOWS = "give the agent a larger --conntrack-min or --conntrack-max-per-core"
_OLDEST = "the entry that was used least goes first; `ebpflb maps dump NAME` shows who has them"
_ADVICE = {
    **dict.fromkeys(("lb_frontends", "lb_descs", "lb_slots", "lb_backends", "lb_names"), _GROWS),
    **dict.fromkeys(("lb_addrs", "lb_src_ranges"), _GROWS),
    **dict.fromkeys(("lb_conntrack", "lb_ct_short"), _MORE_FLOWS),
    **dict.fromkeys(("lb_sockets", "lb_connections", "lb_affinity", "lb_fragments"), _OLDEST),
    **dict.fromkeys(("lb_devices", "lb_netns"), "no more devices or pods can be served"),
}


class Fill(NamedTuple):
    """One map; `used` of `room` elements are in force."""

    name: str
    used: int
    room: int

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return self.used / self.room


def check_maps(maps: MapSet) -> list[Finding]:
    """A warning above 80 %. MapError."""
    fills = [Fill(name, used_entries(maps, name), maps[name].max_entries) for name in _ADVICE]
    fullest = max(fills, key=lambda fill: fill.share)
    return all_well(CHECK, f"the fullest is {fullest.name}, {fullest.share:.0%}", _full(fills))


def _full(fills: Iterable[Fill]) -> Iterator[Finding]:
    for each in fills:
        if each.share > _MUCH:
            what = f"{each.share:.0%} full: {each.used} of {each.room}"
            yield Finding(Severity.WARNING, CHECK, each.name, what, _ADVICE[each.name])
