# SPDX-License-Identifier: Apache-2.0
"""Every check of what is in the kernel of this node, one after the other. Nothing is changed.

A check that fails becomes a finding itself; the others are still made.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ebpflb.dataplane.attach.attachments import pinned_programs
from ebpflb.dataplane.attach.devices import DeviceSettings, NetworkState, snapshot
from ebpflb.dataplane.doctor import pins
from ebpflb.dataplane.doctor.coverage import CHECK as COVERAGE
from ebpflb.dataplane.doctor.coverage import check_coverage
from ebpflb.dataplane.doctor.finding import Finding, Severity
from ebpflb.dataplane.doctor.hooks import DEVICES, SOCKETS, check_devices, check_sockets
from ebpflb.dataplane.doctor.node import (
    CLOCK,
    KERNEL,
    KUBE_PROXY,
    SYSCTLS,
    check_clock,
    check_kernel,
    check_kube_proxy,
    check_sysctls,
)
from ebpflb.dataplane.doctor.pins import ADDRESSES, FILL, check_addresses, check_maps
from ebpflb.dataplane.flows.source_ports import Ports, own_ports
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Probe
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION, LbSettings
from ebpflb.dataplane.load.pins import LINKS, newest_generation
from ebpflb.errors import EbpflbError, ProbeError


@dataclass(frozen=True, slots=True)
class NodePaths:
    """The pins, the cgroup of the socket hooks, and the patterns of devices."""

    pins: Path
    cgroup: Path
    devices: DeviceSettings


def examine(node: NodePaths) -> list[Finding]:
    """Everything that is found, in the order of the checks, for the calling thread's namespace."""
    return [
        *_checked(KERNEL, lambda: check_kernel(Probe())),
        *_checked(pins.CHECK, lambda: pins.check_pins(node.pins)),
        *_check_hooks(node),
        *_checked(KUBE_PROXY, check_kube_proxy),
        *_checked(CLOCK, check_clock),
    ]


def _check_hooks(node: NodePaths) -> Iterator[Finding]:
    """The devices, and what is loaded."""
    try:
        network = snapshot(node.devices)
    except ProbeError as error:
        yield _failed(DEVICES, error)
        return
    loaded = None
    try:
        loaded = _load(node.pins)
    except (EbpflbError, OSError) as error:
        yield _failed(pins.CHECK, error)
    if loaded:
        yield from _check_loaded(node, network, *loaded)
    maps = loaded[0] if loaded else None
    yield from _checked(SYSCTLS, lambda: check_sysctls(network, _snat_ports(maps)))


def _check_loaded(
    node: NodePaths, network: NetworkState, maps: MapSet, programs: Collection[int]
) -> Iterator[Finding]:
    links = node.pins / LINKS
    yield from _checked(SOCKETS, lambda: check_sockets(node.cgroup, programs))
    yield from _checked(DEVICES, lambda: check_devices(network, links, programs))
    netns = maps["lb_netns"]
    yield from _checked(COVERAGE, lambda: check_coverage(node.cgroup, network, netns))
    yield from _checked(FILL, lambda: check_maps(maps))
    yield from _checked(ADDRESSES, lambda: check_addresses(maps))


def _load(root: Path) -> tuple[MapSet, frozenset[int]] | None:
    """The maps and the ids of the programs; None where check_pins() says why there are none."""
    newest = newest_generation(root)
    if newest is None or newest.layout != LAYOUT_VERSION:
        return None
    maps = open_maps(newest.maps)
    return None if MAPS.keys() - maps.keys() else (maps, pinned_programs(newest))


def _snat_ports(maps: MapSet | None) -> Iterable[Ports]:
    """Those in force, else those that an agent would choose now."""
    value = maps["lb_settings"].lookup(bytes(4)) if maps else None
    if not value:
        return own_ports()
    return [(each.first, each.last) for each in LbSettings.from_buffer_copy(value).snat_ports]


def _checked(check: str, find: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(find())
    except (EbpflbError, OSError) as error:
        return [_failed(check, error)]


def _failed(check: str, error: Exception) -> Finding:
    text = " ".join(str(error).split())
    return Finding(Severity.WARNING, check, "", f"could not be checked: {text}")
