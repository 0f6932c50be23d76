# SPDX-License-Identifier: Apache-2.0
"""What programs know of devices and pods: lb_devices, lb_uplinks and lb_netns.

lb_uplinks has what host devices masquerade with, where a program finds it without a search. Each
function writes only what has changed, and raises MapError.
"""

from collections.abc import Callable, Collection, Iterable, Mapping

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change
from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.kernel.namespaces import own_cookie
from ebpflb.dataplane.layout import structs
from ebpflb.dataplane.layout.capacity import UPLINKS
from ebpflb.dataplane.layout.enums import DeviceFlag, DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.structs import LbAddr, LbUplink, u32, u64

_BLANK = LbUplink()
_HOST = bytes(structs.LbNetns(flags=NetnsFlag.LB_NETNS_HOST))


def write_devices(target: BpfMap, devices: Iterable[Device]) -> Change:
    """Write the devices. Those of others stay, until `remove_other_devices()`."""
    return _write(target, {bytes(u32(device.ifindex)): _device(device) for device in devices})


def remove_other_devices(target: BpfMap, devices: Iterable[Device]) -> Change:
    """Remove all but these devices."""
    return _remove_others(target, {bytes(u32(device.ifindex)) for device in devices})


def mark_host(target: BpfMap) -> Change:
    """Tell the socket hooks the calling thread's namespace, the node's. ProbeError."""
    return _write(target, {bytes(u64(own_cookie())): _HOST})


def mark_pods(
    target: BpfMap, pods: Mapping[int, Collection[int]], served: Collection[int]
) -> Change:
    """Mark as covered the pods whose devices all run our programs, and no others. ProbeError.

    `pods`: ifindexes by the cookie of a pod's namespace; `served`: the ifindexes with programs.
    """
    desired = {
        bytes(u64(cookie)): bytes(structs.LbNetns(NetnsFlag.LB_NETNS_COVERED, min(ifindexes)))
        for cookie, ifindexes in pods.items()
        if set(ifindexes).issubset(served)
    }
    desired[bytes(u64(own_cookie()))] = _HOST
    return max(_write(target, desired), _remove_others(target, desired))


def write_uplinks(
    target: BpfMap, devices: Iterable[Device], quiesce: Callable[[], None] = membarrier
) -> Change:
    """Write what host devices masquerade with.

    Addresses are written while no program can read them: before, and until all of them are there,
    the element has no ifindex, and programs look into lb_devices.
    """
    wanted = _wanted(devices)
    present = {key: LbUplink.from_buffer_copy(value) for key, value in target.items()}
    changed = [key for key in present if present[key] != wanted.get(key, _BLANK)]
    if not changed:
        return Change.KEPT
    for state in (present, wanted):
        hidden = [LbUplink.from_buffer_copy(state.get(key, _BLANK)) for key in changed]
        for each in hidden:
            each.ifindex = 0
        target.update_batch(list(zip(changed, map(bytes, hidden), strict=True)))
        quiesce()
    target.update_batch([(key, bytes(wanted.get(key, _BLANK))) for key in changed])
    return Change.REPLACED


def _wanted(devices: Iterable[Device]) -> Mapping[bytes, LbUplink]:
    """By place; of several devices with one place the oldest, which has the lowest ifindex."""
    hosts = [device for device in devices if device.kind == DeviceKind.LB_DEVICE_HOST]
    hosts.sort(key=lambda device: device.ifindex, reverse=True)
    return {bytes(u32(device.ifindex % UPLINKS)): _uplink(device) for device in hosts}


def _uplink(device: Device) -> LbUplink:
    return LbUplink(
        ifindex=device.ifindex, snat4=LbAddr.of(device.snat4), snat6=LbAddr.of(device.snat6)
    )


def _device(device: Device) -> bytes:
    flags = DeviceFlag.LB_DEVICE_ETHERNET if device.ethernet else 0
    return bytes(
        structs.LbDevice(device.kind, flags, LbAddr.of(device.snat4), LbAddr.of(device.snat6))
    )


def _write(target: BpfMap, desired: Mapping[bytes, bytes]) -> Change:
    present = dict(target.items())
    changed = [entry for entry in desired.items() if present.get(entry[0]) != entry[1]]
    if not changed:
        return Change.KEPT
    target.update_batch(changed)
    return Change.REPLACED


def _remove_others(target: BpfMap, desired: Collection[bytes]) -> Change:
    stale = [key for key, _ in target.items() if key not in desired]
    if not stale:
        return Change.KEPT
    target.delete_batch(stale)
    return Change.DETACHED
