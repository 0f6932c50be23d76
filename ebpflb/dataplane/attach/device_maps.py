# SPDX-License-Identifier: Apache-2.0
"""Devices and pods as the programs see them: lb_devices, lb_uplinks, lb_subnets, lb_netns and
lb_pod_cgroups.

lb_uplinks is an array with the addresses of host devices, which spares programs a hash lookup.
Each function writes only what has changed, and raises MapError.
"""

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from types import MappingProxyType

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change
from ebpflb.dataplane.attach.xdp import XdpWay
from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import BpfMap
from ebpflb.dataplane.kernel.namespaces import own_cookie
from ebpflb.dataplane.layout import structs
from ebpflb.dataplane.layout.capacity import UPLINKS
from ebpflb.dataplane.layout.enums import DeviceFlag, DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.records import Subnet
from ebpflb.dataplane.layout.structs import LbAddr, LbUplink, u32, u64

_BLANK = LbUplink()
_NO_XDP = XdpWay("")
_NONE: Mapping[int, XdpWay] = MappingProxyType({})
_COVERED = NetnsFlag.LB_NETNS_COVERED
_HOST = bytes(structs.LbNetns(flags=NetnsFlag.LB_NETNS_HOST))


def write_devices(
    target: BpfMap, devices: Iterable[Device], xdp: Mapping[int, XdpWay] = _NONE
) -> Change:
    """Write the devices, and how XDP is attached to them.

    Other devices stay until `remove_other_devices()`.
    """
    return _write(
        target,
        {
            bytes(u32(device.ifindex)): _device(device, xdp.get(device.ifindex, _NO_XDP))
            for device in devices
        },
    )


def remove_other_devices(target: BpfMap, devices: Iterable[Device]) -> Change:
    """Remove all but these devices."""
    return _remove_others(target, {bytes(u32(device.ifindex)) for device in devices})


def write_subnets(target: BpfMap, devices: Iterable[Device]) -> Change:
    """Write the SNAT addresses of host devices with several subnets, before their flag is set."""
    return _write(target, _subnets(devices))


def remove_other_subnets(target: BpfMap, devices: Iterable[Device]) -> Change:
    """Remove all subnets but those of these devices."""
    return _remove_others(target, _subnets(devices))


def mark_host(target: BpfMap) -> Change:
    """Tell the socket hooks the calling thread's namespace as the node's. ProbeError."""
    return _write(target, {bytes(u64(own_cookie())): _HOST})


def mark_pods(
    target: BpfMap, covered: Mapping[int, Collection[int]], tc_only: Container[int] = ()
) -> Change:
    """Mark these pods as covered, and no others. ProbeError.

    `covered`: ifindexes by the cookie of a pod's namespace; `tc_only`: cookies of pods whose
    sockets are left alone.
    """
    flags = {True: _COVERED | NetnsFlag.LB_NETNS_TC_ONLY, False: _COVERED}
    desired = {
        bytes(u64(cookie)): bytes(structs.LbNetns(flags[cookie in tc_only], min(ifindexes)))
        for cookie, ifindexes in covered.items()
    }
    desired[bytes(u64(own_cookie()))] = _HOST
    return max(_write(target, desired), _remove_others(target, desired))


def write_pod_cgroups(target: BpfMap, cgroups: Iterable[int]) -> Change:
    """Write the ids of these cgroups. Other ones stay until `remove_other_pod_cgroups()`."""
    return _write(target, {bytes(u64(each)): b"\1" for each in cgroups})


def remove_other_pod_cgroups(target: BpfMap, cgroups: Iterable[int]) -> Change:
    """Remove all but these cgroups."""
    return _remove_others(target, {bytes(u64(each)) for each in cgroups})


def write_uplinks(
    target: BpfMap,
    devices: Iterable[Device],
    xdp: Mapping[int, XdpWay] = _NONE,
    quiesce: Callable[[], None] = membarrier,
) -> Change:
    """Write the addresses of host devices, and how XDP is attached to them.

    Addresses are written while no program can read them: until all of them are there, the element
    has no ifindex, and programs use lb_devices instead.
    """
    wanted = _wanted(devices, xdp)
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


def _wanted(devices: Iterable[Device], xdp: Mapping[int, XdpWay]) -> Mapping[bytes, LbUplink]:
    """By index; of several devices with the same index, the oldest, with the lowest ifindex."""
    hosts = [device for device in devices if device.kind == DeviceKind.LB_DEVICE_HOST]
    hosts.sort(key=lambda device: device.ifindex, reverse=True)
    return {
        bytes(u32(device.ifindex % UPLINKS)): _uplink(device, xdp.get(device.ifindex, _NO_XDP))
        for device in hosts
    }


def _uplink(device: Device, xdp: XdpWay) -> LbUplink:
    return LbUplink(
        device.ifindex,
        _flags_of(device, xdp),
        LbAddr.of(device.snat4),
        LbAddr.of(device.snat6),
        tuple(device.mac),
    )


def _device(device: Device, xdp: XdpWay) -> bytes:
    flags = _flags_of(device, xdp) | (DeviceFlag.LB_DEVICE_ETHERNET if device.ethernet else 0)
    return bytes(
        structs.LbDevice(
            device.kind,
            flags,
            device.mtu,
            LbAddr.of(device.snat4),
            LbAddr.of(device.snat6),
            tuple(device.mac),
        )
    )


def _flags_of(device: Device, xdp: XdpWay) -> int:
    flags = {
        DeviceFlag.LB_DEVICE_SUBNETS: device.subnets,
        DeviceFlag.LB_DEVICE_XDP: xdp.mode,
        DeviceFlag.LB_DEVICE_XDP_SENDS: xdp.sends,
        DeviceFlag.LB_DEVICE_XDP_STALLS: xdp.stalls,
    }
    return sum(flag for flag, is_set in flags.items() if is_set)


def _subnets(devices: Iterable[Device]) -> Mapping[bytes, bytes]:
    return {
        Subnet(device.ifindex, next_hops).pack(): bytes(source)
        for device in devices
        for next_hops, source in device.subnets.items()
    }


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
