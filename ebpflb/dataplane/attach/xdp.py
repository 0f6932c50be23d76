# SPDX-License-Identifier: Apache-2.0
"""lb_xdp at uplinks, through a pinned link: which devices, how it is attached, and why not.

Packets that it does not send pass to the programs at tc, which every device has anyway. So a device
may get or lose lb_xdp at any time, and a device that cannot have it is served by tc.

A device has at most one XDP link, and the kernel refuses it if another program is attached (EBUSY):
that one stays. Drivers refuse for reasons of their own, such as an MTU above one buffer or LRO. A
driver that accepts the program can send packets back out of the same device; whether it also sends
packets redirected by programs at other devices is reported by the kernel since Linux 6.3.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, NamedTuple

from ebpflb.dataplane.attach import links
from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import Change, HeldLinks, LoadedProgram
from ebpflb.dataplane.kernel.netdev import XdpFeature, xdp_features
from ebpflb.dataplane.kernel.uapi import XdpFlag
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.errors import AttachError

XdpMode = Literal["off", "auto", "native", "generic"]
XDP_PIN = re.compile(r"xdp_(native|generic)_([0-9]+)(_new)?")

_FLAGS = {"native": XdpFlag.NATIVE, "generic": XdpFlag.GENERIC}
# Devices without rings of their own: a program there sees other devices' frames, or none.
_STACKED = frozenset({"bond", "team", "bridge", "vlan", "macvlan", "ipvlan", "vxlan", "geneve"})
_REFUSED = {
    errno.EBUSY: "another XDP program is attached",
    errno.EOPNOTSUPP: "its driver does not support XDP",
    errno.EINVAL: "its driver rejects XDP with this MTU or these offloads",
    errno.ERANGE: "its driver rejects XDP with this MTU",
}


class XdpSettings(NamedTuple):
    """`devices`: patterns of names, empty for every uplink. `is_stack`: the kernel routes."""

    mode: XdpMode
    devices: Sequence[str] = ()
    is_stack: bool = False


class XdpWay(NamedTuple):
    """How lb_xdp is attached: `mode` "native", "generic", or "" for not at all; `why` not.

    `sends`: it sends packets redirected by programs at other devices. `stalls`: XDP_TX may block.
    """

    mode: str
    why: str = ""
    sends: bool = False
    stalls: bool = False


NO_XDP = XdpSettings("off")


def wanted(
    device: Device, settings: XdpSettings, features: Mapping[int, XdpFeature] | None
) -> XdpWay:
    """How to attach it to a host device; `features` as from xdp_features()."""
    if why := _why_not(device, settings):
        return XdpWay("", why)
    if settings.mode == "generic":
        return XdpWay("generic", sends=True)
    found = None if features is None else features.get(device.ifindex, XdpFeature(0))
    if why := _why_not_native(device, settings, found):
        return XdpWay("", why)
    sends = bool(found and XdpFeature.NDO_XMIT in found)
    return XdpWay("native", sends=sends, stalls=device.link == "veth")


def _why_not(device: Device, settings: XdpSettings) -> str:
    is_named = any(fnmatchcase(device.name, each) for each in settings.devices or "*")
    reasons = {
        "the option xdp is off": settings.mode == "off",
        "not named by the option xdp-devices": not is_named,
        "the kernel routes masqueraded packets (the option forwarding)": settings.is_stack,
        "its packets have no Ethernet header": not device.ethernet,
        "it carries VLANs, whose tags XDP may not see": device.has_vlans,
    }
    return next((why for why, applies in reasons.items() if applies), "")


def _why_not_native(device: Device, settings: XdpSettings, found: XdpFeature | None) -> str:
    """A veth only carries frames between two stacks. `found`: None if unknown."""
    is_veth = device.link == "veth"
    lacks = XdpFeature(0) if found is None else ~found
    reasons = {
        f"a {device.link} has no rings of its own": device.link in _STACKED,
        "a veth, which XDP would slow down": is_veth and settings.mode == "auto",
        "its driver does not support XDP": XdpFeature.BASIC in lacks,
        "its peer does not accept frames from XDP: run `ethtool -K PEER gro on` there": is_veth
        and XdpFeature.NDO_XMIT in lacks,
    }
    return next((why for why, applies in reasons.items() if applies), "")


class XdpHooks:
    """The devices of one network namespace. `pins`: the directory of pinned links."""

    def __init__(
        self,
        pins: Path,
        program: LoadedProgram | None,
        features: Callable[[list[int]], Mapping[int, XdpFeature] | None] = xdp_features,
        held: HeldLinks | None = None,
    ) -> None:
        """`program`: None if it is not loaded."""
        self._pins, self._program, self._features = pins, program, features
        self._held = held

    def plan(self, devices: Iterable[Device], settings: XdpSettings) -> Mapping[int, XdpWay]:
        """How to attach it to each host device, by ifindex."""
        hosts = [each for each in devices if each.kind == DeviceKind.LB_DEVICE_HOST]
        features = self._known_features(hosts, settings)
        return {each.ifindex: wanted(each, settings, features) for each in hosts}

    def apply(
        self, plan: Mapping[int, XdpWay]
    ) -> tuple[Mapping[int, XdpWay], Mapping[int, Change]]:
        """Attach and detach; returns how it is now attached to each device, and the changes.

        Detaches it from all other devices. AttachError if a link cannot be detached.
        """
        ways, changes = {}, {}
        for ifindex, way in plan.items():
            ways[ifindex], changes[ifindex] = self._apply(ifindex, way)
        for ifindex in attached(self._pins) - plan.keys():
            self.detach(ifindex)
        return ways, changes

    def detach(self, ifindex: int) -> bool:
        """Detach ours from one device; False if there was nothing."""
        return bool(self._detach(ifindex, _FLAGS))

    def _known_features(
        self, hosts: Sequence[Device], settings: XdpSettings
    ) -> Mapping[int, XdpFeature] | None:
        if settings.mode not in ("auto", "native"):
            return None
        try:
            return self._features([each.ifindex for each in hosts])
        except OSError:
            return None

    def _apply(self, ifindex: int, way: XdpWay) -> tuple[XdpWay, Change]:
        gone = self._detach(ifindex, _FLAGS.keys() - {way.mode})
        if not way.mode or self._program is None:
            return XdpWay("", way.why), gone
        pin = self._pin(way.mode, ifindex)
        try:
            flags = _FLAGS[way.mode]
            return way, links.attach_xdp(pin, ifindex, flags, self._program, self._held)
        except AttachError as error:
            links.detach(pin)
            return XdpWay("", _reason(error)), gone

    def _detach(self, ifindex: int, modes: Iterable[str]) -> Change:
        pins = [self._pin(mode, ifindex) for mode in modes]
        done = [links.detach(pin) for pin in pins if links.is_pinned(pin)]
        return Change.DETACHED if any(done) else Change.KEPT

    def _pin(self, mode: str, ifindex: int) -> Path:
        return self._pins / f"xdp_{mode}_{ifindex}"


def attached(pins: Path) -> Set[int]:
    """The devices with a pinned link, some of them perhaps gone."""
    names = (path.name for path in pins.iterdir())
    matches = (XDP_PIN.fullmatch(name) for name in names)
    return {int(match[2]) for match in matches if match}


def _reason(error: AttachError) -> str:
    cause = error.__cause__
    number = cause.errno if isinstance(cause, OSError) else None
    text = os.strerror(number) if number else str(error)
    return _REFUSED.get(number or 0, text)
