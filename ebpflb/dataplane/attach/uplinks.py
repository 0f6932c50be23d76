# SPDX-License-Identifier: Apache-2.0
"""lb_uplinks: what host devices masquerade with, where programs find it without a search."""

from collections.abc import Callable, Iterable, Mapping

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.kernel.membarrier import membarrier
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.dataplane.layout.map_specs import UPLINKS
from ebpflb.dataplane.layout.structs import Addr, Uplink, u32

_BLANK = Uplink()


def write_uplinks(
    target: BpfMap, devices: Iterable[Device], quiesce: Callable[[], None] = membarrier
) -> Change:
    """Write what has changed. MapError.

    Addresses are written while no program can read them: before, and until all of them are there,
    the element has no ifindex, and lb_devices is asked.
    """
    wanted = _wanted(devices)
    present = {key: Uplink.from_buffer_copy(value) for key, value in target.items()}
    changed = [key for key in present if present[key] != wanted.get(key, _BLANK)]
    if not changed:
        return Change.KEPT
    for state in (present, wanted):
        hidden = [Uplink.from_buffer_copy(state.get(key, _BLANK)) for key in changed]
        for each in hidden:
            each.ifindex = 0
        target.update_batch(list(zip(changed, map(bytes, hidden), strict=True)))
        quiesce()
    target.update_batch([(key, bytes(wanted.get(key, _BLANK))) for key in changed])
    return Change.REPLACED


def _wanted(devices: Iterable[Device]) -> Mapping[bytes, Uplink]:
    """By place; of several devices with one place the oldest, which has the lowest ifindex."""
    hosts = [device for device in devices if device.kind == DeviceKind.LB_DEVICE_HOST]
    hosts.sort(key=lambda device: device.ifindex, reverse=True)
    return {bytes(u32(device.ifindex % UPLINKS)): _uplink(device) for device in hosts}


def _uplink(device: Device) -> Uplink:
    return Uplink(ifindex=device.ifindex, snat4=Addr.of(device.snat4), snat6=Addr.of(device.snat6))
