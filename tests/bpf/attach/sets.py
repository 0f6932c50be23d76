# SPDX-License-Identifier: Apache-2.0
"""Sets of programs that accept every packet, each attached through its own pins."""

from pathlib import Path

from ebpflb.dataplane.attach.devices import snapshot
from ebpflb.dataplane.attach.hooks import HookPlaces, Hooks
from ebpflb.dataplane.attach.links import HeldLinks
from ebpflb.dataplane.attach.xdp import XdpMode, XdpSettings
from ebpflb.dataplane.kernel import libbpf
from ebpflb.dataplane.kernel.libc import owned
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.kernel.uapi import MapType
from ebpflb.dataplane.load.pins import LINKS
from tests.bpf.attach import tiny
from tests.memory_maps import memory_maps

WAYS = {"tcx": Probe(), "clsact": Probe(without={Feature.TCX_LINK})}


class _Defaults:
    host_devices = nodeport_addresses = workload_devices = ()
    bind_address = ""


def attach_set(
    root: Path,
    cgroup: Path,
    way: str = "tcx",
    *,
    xdp: XdpMode = "off",
    map_name: str = "lb_settings",
) -> None:
    """Attach one set to a cgroup and the devices of this namespace. `map_name`: the map that it
    uses.
    """
    (root / LINKS).mkdir(parents=True)
    progs = root / "1-1" / "progs"
    with owned(libbpf.map_create(MapType.ARRAY, map_name, 4, 4, 1)) as used:
        tiny.pin_programs(progs, used)
    places = HookPlaces(progs, root / LINKS, cgroup)
    with HeldLinks() as held, Hooks(places, memory_maps(), WAYS[way], held) as hooks:
        assert hooks.apply(snapshot(_Defaults()), XdpSettings(xdp)).errors == {}
