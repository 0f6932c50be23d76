# SPDX-License-Identifier: Apache-2.0
"""Every check of what is in the kernel of this node, one after the other. Nothing is changed.

A check that fails is a finding itself and keeps no other from being made.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ebpflb.dataplane.attach.attachments import pinned_programs
from ebpflb.dataplane.attach.devices import DeviceSettings, NetworkState, snapshot
from ebpflb.dataplane.doctor import coverage, pins
from ebpflb.dataplane.doctor.finding import Finding, Severity
from ebpflb.dataplane.doctor.hooks import DEVICES, SOCKETS, check_devices, check_sockets
from ebpflb.dataplane.doctor.maps import ADDRESSES, FILL, check_addresses, check_maps
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
from ebpflb.dataplane.flows.source_ports import Ports, own_ports
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Probe
from ebpflb.dataplane.layout.capacity import MAPS
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION, Settings
from ebpflb.dataplane.load.pins import LINKS, newest_generation
from ebpflb.errors import EbpflbError, ProbeError

Check = tuple[str, Callable[[], Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class NodePaths:
    """Where to look: the pins, the cgroup of the socket hooks, and which devices are meant."""

    pins: Path
    cgroup: Path
    devices: DeviceSettings


class _Loaded(NamedTuple):
    """What the agent has made, as far as this version can read it."""

    maps: MapSet
    programs: frozenset[int]


def examine(node: NodePaths) -> list[Finding]:
    """Everything that is found, in the order of the checks, for the calling thread's namespace."""
    checks: list[Check] = [
        (KERNEL, lambda: check_kernel(Probe())),
        (pins.CHECK, lambda: pins.check_pins(node.pins)),
        *_of_hooks(node),
        (KUBE_PROXY, check_kube_proxy),
        (CLOCK, check_clock),
    ]
    return [finding for check in checks for finding in _made(*check)]


def _of_hooks(node: NodePaths) -> Iterator[Check]:
    """Those that look at devices, and at what is loaded."""
    loaded: _Loaded | None = None
    try:
        network = snapshot(node.devices)
        loaded = _load(node.pins)
    except ProbeError as error:
        unseen = _failed(DEVICES, error)
        yield DEVICES, lambda: [unseen]
        return
    except (EbpflbError, OSError) as error:
        unread = _failed(pins.CHECK, error)
        yield pins.CHECK, lambda: [unread]
    snat = _snat_ports(loaded)
    if loaded:
        yield from _of_what_is_loaded(node, loaded, network)
    yield SYSCTLS, lambda: check_sysctls(network, snat)


def _of_what_is_loaded(node: NodePaths, loaded: _Loaded, network: NetworkState) -> Iterator[Check]:
    maps, programs = loaded
    yield (
        SOCKETS,
        lambda: check_sockets(node.cgroup, programs),
    )
    yield (
        DEVICES,
        lambda: check_devices(network, node.pins / LINKS, programs),
    )
    yield (
        coverage.CHECK,
        lambda: coverage.check_coverage(node.cgroup, network, maps["lb_netns"]),
    )
    yield FILL, lambda: check_maps(maps)
    yield ADDRESSES, lambda: check_addresses(maps)


def _load(root: Path) -> _Loaded | None:
    """None where the check of the pins says why there is nothing to read."""
    newest = newest_generation(root)
    if newest is None or newest.layout != LAYOUT_VERSION:
        return None
    maps = open_maps(newest.maps)
    return None if MAPS.keys() - maps.keys() else _Loaded(maps, pinned_programs(newest))


def _snat_ports(loaded: _Loaded | None) -> Iterable[Ports]:
    """Those in force, else those that an agent would choose now."""
    value = loaded.maps["lb_settings"].lookup(bytes(4)) if loaded else None
    if not value:
        return own_ports()
    return [(each.first, each.last) for each in Settings.from_buffer_copy(value).snat_ports]


def _made(check: str, make: Callable[[], Iterable[Finding]]) -> list[Finding]:
    try:
        return list(make())
    except (EbpflbError, OSError) as error:
        return [_failed(check, error)]


def _failed(check: str, error: Exception) -> Finding:
    text = " ".join(str(error).split())
    return Finding(Severity.WARNING, check, "", f"could not be checked: {text}")
