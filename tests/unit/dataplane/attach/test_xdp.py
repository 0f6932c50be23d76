# SPDX-License-Identifier: Apache-2.0
"""Which devices get XDP, and the reasons why others do not."""

import dataclasses
from pathlib import Path

import pytest

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.xdp import NO_XDP, XdpHooks, XdpSettings, XdpWay, attached, wanted
from ebpflb.dataplane.kernel.netdev import XdpFeature
from ebpflb.dataplane.layout.enums import DeviceKind

CARD = Device(2, "eth0", DeviceKind.LB_DEVICE_HOST, ethernet=True, up=True)
VETH = dataclasses.replace(CARD, link="veth")
ALL = XdpFeature.BASIC | XdpFeature.REDIRECT | XdpFeature.NDO_XMIT
AUTO, NATIVE, GENERIC = XdpSettings("auto"), XdpSettings("native"), XdpSettings("generic")


@pytest.mark.parametrize(
    ("device", "settings", "features", "way"),
    [
        (CARD, AUTO, {2: ALL}, XdpWay("native", sends=True)),
        (CARD, NATIVE, {2: ALL}, XdpWay("native", sends=True)),
        (CARD, AUTO, {2: XdpFeature.BASIC}, XdpWay("native")),
        # Linux before 6.3 does not report this: then the driver is queried, and nothing is
        # redirected.
        (CARD, AUTO, None, XdpWay("native")),
        (CARD, GENERIC, None, XdpWay("generic", sends=True)),
        (VETH, GENERIC, None, XdpWay("generic", sends=True)),
        (VETH, NATIVE, {2: ALL}, XdpWay("native", sends=True, stalls=True)),
    ],
)
def test_a_device_has_it(device, settings, features, way):
    assert wanted(device, settings, features) == way


@pytest.mark.parametrize(
    ("change", "settings", "features", "why"),
    [
        ({}, NO_XDP, {2: ALL}, "off"),
        ({}, XdpSettings("auto", ["en*", "eth1"]), {2: ALL}, "xdp-devices"),
        ({}, XdpSettings("auto", is_stack=True), {2: ALL}, "the kernel routes"),
        ({"ethernet": False}, GENERIC, None, "no Ethernet header"),
        ({"has_vlans": True}, GENERIC, None, "VLANs"),
        ({"link": "bond"}, NATIVE, {2: ALL}, "a bond"),
        ({"link": "vlan"}, AUTO, {2: ALL}, "a vlan"),
        ({"link": "veth"}, AUTO, {2: ALL}, "slow down"),
        ({"link": "veth"}, NATIVE, {2: XdpFeature.BASIC}, "gro on"),
        ({}, AUTO, {2: XdpFeature(0)}, "driver does not support XDP"),
        ({}, NATIVE, {}, "driver does not support XDP"),
    ],
)
def test_a_device_is_without_for_a_reason(change, settings, features, why):
    way = wanted(dataclasses.replace(CARD, **change), settings, features)
    assert not way.mode
    assert not way.sends
    assert why in way.why


def test_a_pattern_names_a_device():
    way = wanted(CARD, XdpSettings("auto", ["en*", "eth*"]), {2: ALL})
    assert way.mode == "native"


def test_only_host_devices_are_planned(tmp_path: Path):
    pod = dataclasses.replace(CARD, ifindex=3, kind=DeviceKind.LB_DEVICE_WORKLOAD)
    asked = []

    def features(ifindexes: list[int]) -> dict[int, XdpFeature]:
        asked.extend(ifindexes)
        return {2: ALL}

    hooks = XdpHooks(tmp_path, None, features)
    assert hooks.plan([CARD, pod], AUTO) == {2: XdpWay("native", sends=True)}
    assert asked == [2]


def test_features_are_not_asked_for_in_vain(tmp_path: Path):
    def refuse(ifindexes: list[int]) -> dict[int, XdpFeature]:
        raise OSError(ifindexes)

    hooks = XdpHooks(tmp_path, None, refuse)
    assert hooks.plan([CARD], GENERIC)[2].mode == "generic"
    # One who cannot be asked has the driver asked.
    assert hooks.plan([CARD], AUTO) == {2: XdpWay("native")}


def test_without_a_program_nothing_is_attached(tmp_path: Path):
    ways, changes = XdpHooks(tmp_path, None).apply({2: XdpWay("native")})
    assert ways == {2: XdpWay("")}
    assert not any(changes.values())


def test_the_pins_name_the_devices(tmp_path: Path):
    for name in ("xdp_native_7", "xdp_generic_12_new", "tcx_ingress_3", "xdp_7"):
        (tmp_path / name).touch()
    assert attached(tmp_path) == {7, 12}
