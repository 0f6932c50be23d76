# SPDX-License-Identifier: Apache-2.0
"""The maps: how full they are, and addresses that are a Service's and a node's at once."""

from collections.abc import Iterable, Iterator
from sys import byteorder
from typing import NamedTuple

from ebpflb.dataplane.doctor.finding import Finding, Severity, all_well
from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.enums import AddrFlag
from ebpflb.dataplane.layout.records import AddrRecord
from ebpflb.dataplane.services.mirror import Mirror
from ebpflb.dataplane.view.map_fill import used_entries
from ebpflb.model.address import Address, format_address

FILL = "maps"

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
        return self.used / self.room


def check_maps(maps: MapSet) -> list[Finding]:
    """A warning above 80 %. MapError."""
    fills = [Fill(name, used_entries(maps, name), maps[name].max_entries) for name in _ADVICE]
    fullest = max(fills, key=lambda fill: fill.share)
    return all_well(FILL, f"the fullest is {fullest.name}, {fullest.share:.0%}", _full(fills))


def _full(fills: Iterable[Fill]) -> Iterator[Finding]:
    for each in fills:
        if each.share > _MUCH:
            what = f"{each.share:.0%} full: {each.used} of {each.room}"
            yield Finding(Severity.WARNING, FILL, each.name, what, _ADVICE[each.name])


ADDRESSES = "addresses"

_NODE, _CLUSTER_IP = int(AddrFlag.LB_ADDR_NODE), int(AddrFlag.LB_ADDR_CLUSTER_IP)
_TAKE_AWAY = "take it off the device (`ip addr show to ADDRESS`); kube-proxy leaves kube-ipvs0"


def check_addresses(maps: MapSet) -> list[Finding]:
    """ClusterIPs and external addresses that this node has itself. MapError."""
    states = Mirror(maps["lb_addr_flags"])
    states.load()
    words = {
        Address(key): AddrRecord.unpack(states[int.from_bytes(value, byteorder)]).flags
        for key, value in maps["lb_addrs"].items()
    }
    vips = sum(word & _CLUSTER_IP != 0 for word in words.values())
    found = [each for address in sorted(words) for each in _judge_address(address, words[address])]
    return all_well(ADDRESSES, f"none of {vips} ClusterIPs is an address of this node", found)


def _judge_address(address: Address, word: int) -> Iterator[Finding]:
    if not word & _NODE:
        return
    place = format_address(address)
    if word & _CLUSTER_IP:
        what = "is a ClusterIP and an address of this node"
        yield Finding(Severity.WARNING, ADDRESSES, place, what, _TAKE_AWAY)
    if word & AddrFlag.LB_ADDR_EXTERNAL:
        what = "is an external address of a Service and one of this node: ports of both are served"
        yield Finding(Severity.NOTE, ADDRESSES, place, what)
