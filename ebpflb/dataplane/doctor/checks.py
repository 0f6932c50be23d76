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
from ebpflb.dataplane.doctor import (
    addresses as doctor_addresses,
)
from ebpflb.dataplane.doctor import (
    clock as doctor_clock,
)
from ebpflb.dataplane.doctor import (
    coverage as doctor_coverage,
)
from ebpflb.dataplane.doctor import (
    devices as doctor_devices,
)
from ebpflb.dataplane.doctor import (
    kernel as doctor_kernel,
)
from ebpflb.dataplane.doctor import (
    kube_proxy as doctor_kube_proxy,
)
from ebpflb.dataplane.doctor import (
    maps as doctor_maps,
)
from ebpflb.dataplane.doctor import (
    pins as doctor_pins,
)
from ebpflb.dataplane.doctor import (
    sockets as doctor_sockets,
)
from ebpflb.dataplane.doctor import (
    sysctls as doctor_sysctls,
)
from ebpflb.dataplane.doctor.finding import Finding, Severity
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Probe
from ebpflb.dataplane.layout.map_specs import MAPS
from ebpflb.dataplane.layout.structs import LAYOUT_VERSION, Settings
from ebpflb.dataplane.load.pins import LINKS, newest_generation
from ebpflb.dataplane.services.settings import Ports, own_ports
from ebpflb.errors import EbpflbError, ProbeError

Check = tuple[str, Callable[[], Iterable[Finding]]]


@dataclass(frozen=True, slots=True)
class Node:
    """Where to look: the pins, the cgroup of the socket hooks, and which devices are meant."""

    pins: Path
    cgroup: Path
    devices: DeviceSettings


class _Loaded(NamedTuple):
    """What the agent has made, as far as this version can read it."""

    maps: MapSet
    programs: frozenset[int]


def examine(node: Node) -> list[Finding]:
    """Everything that is found, in the order of the checks, for the calling thread's namespace."""
    checks: list[Check] = [
        (doctor_kernel.CHECK, lambda: doctor_kernel.check_kernel(Probe())),
        (doctor_pins.CHECK, lambda: doctor_pins.check_pins(node.pins)),
        *_of_hooks(node),
        (doctor_kube_proxy.CHECK, doctor_kube_proxy.check_kube_proxy),
        (doctor_clock.CHECK, doctor_clock.check_clock),
    ]
    return [finding for check in checks for finding in _made(*check)]


def _of_hooks(node: Node) -> Iterator[Check]:
    """Those that look at devices, and at what is loaded."""
    loaded: _Loaded | None = None
    try:
        network = snapshot(node.devices)
        loaded = _load(node.pins)
    except ProbeError as error:
        unseen = _failed(doctor_devices.CHECK, error)
        yield doctor_devices.CHECK, lambda: [unseen]
        return
    except (EbpflbError, OSError) as error:
        unread = _failed(doctor_pins.CHECK, error)
        yield doctor_pins.CHECK, lambda: [unread]
    snat = _snat_ports(loaded)
    if loaded:
        yield from _of_what_is_loaded(node, loaded, network)
    yield doctor_sysctls.CHECK, lambda: doctor_sysctls.check_sysctls(network, snat)


def _of_what_is_loaded(node: Node, loaded: _Loaded, network: NetworkState) -> Iterator[Check]:
    maps, programs = loaded
    yield (
        doctor_sockets.CHECK,
        lambda: doctor_sockets.check_sockets(node.cgroup, programs),
    )
    yield (
        doctor_devices.CHECK,
        lambda: doctor_devices.check_devices(network, node.pins / LINKS, programs),
    )
    yield (
        doctor_coverage.CHECK,
        lambda: doctor_coverage.check_coverage(node.cgroup, network, maps["lb_netns"]),
    )
    yield doctor_maps.CHECK, lambda: doctor_maps.check_maps(maps)
    yield doctor_addresses.CHECK, lambda: doctor_addresses.check_addresses(maps)


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
