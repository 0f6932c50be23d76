# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.attach.attachments import HookProgram, order_of
from ebpflb.dataplane.attach.devices import Device, NetworkState
from ebpflb.dataplane.attach.links import TcDirection
from ebpflb.dataplane.doctor.hooks import (
    Hooked,
    judge_devices,
    kinds_of_devices,
    uplinks_without_name,
)
from ebpflb.dataplane.kernel.rtnetlink import Interface, InterfaceAddress
from ebpflb.dataplane.layout.enums import DeviceKind
from ebpflb.model.address import Family, parse_address

IN, OUT = TcDirection.INGRESS, TcDirection.EGRESS
OURS, CALICO = HookProgram("lb_host_ingress", True), HookProgram("cali_tc_preambl", False)
HOST = DeviceKind.LB_DEVICE_HOST
NODE = parse_address("192.0.2.1")


def found(*hooked):
    made = [Hooked(device, way, order_of(programs)) for device, way, programs in hooked]
    return [(str(each.severity), each.where, each.what) for each in judge_devices(made)]


def test_ours_both_ways_is_well():
    every = [("eth0", IN, [OURS]), ("eth0", OUT, [OURS])]
    assert found(*every) == [("ok", "", "1 devices have our programs in both directions")]


def test_a_direction_without_ours_is_an_error():
    assert found(("eth0", IN, [CALICO]), ("eth0", OUT, [OURS])) == [
        ("error", "eth0", "no program of ours at ingress")
    ]


@pytest.mark.parametrize(
    ("direction", "programs", "severity", "way"),
    [
        (IN, [CALICO, OURS], "warning", "before"),
        (IN, [OURS, CALICO], "note", "after"),
        (OUT, [CALICO, OURS], "note", "before"),
        (OUT, [OURS, CALICO], "warning", "after"),
    ],
)
def test_ours_is_to_be_first_at_ingress_and_last_at_egress(direction, programs, severity, way):
    every = [(f"veth{n}", direction, programs) for n in range(5)]
    what = f"cali_tc_preambl of Calico runs {way} ours at {direction}"
    assert (severity, "veth0, veth1, veth2 and 2 more", what) in found(*every)


@pytest.mark.parametrize(
    ("interface", "is_told"),
    [
        (Interface(2, "up0"), True),
        (Interface(2, "lo", loopback=True), False),
        (Interface(2, "dummy0", kind="dummy"), False),
        (Interface(2, "up0", upper=9), False),
        (Interface(3, "up0"), False),
        (Interface(4, "eth0"), False),
    ],
)
def test_an_uplink_that_is_left_out_is_reported(interface, is_told):
    addresses = [InterfaceAddress(each, Family.IPV4, NODE, 24) for each in (2, 4)]
    served = {4: Device(4, "eth0", DeviceKind.LB_DEVICE_HOST, True, True)}
    network = NetworkState(served, {}, {}, {"up0": "a port"})
    seen = list(uplinks_without_name([interface], addresses, [NODE, None], network))
    what = "the default route uses it, but it is left out: a port"
    assert [(str(e.severity), e.where, e.what) for e in seen] == [
        ("warning", "up0", what)
    ] * is_told


def test_every_device_is_reported_with_its_kind_and_why():
    kinds = (HOST, *[DeviceKind.LB_DEVICE_WORKLOAD] * 4)
    served = {
        n: Device(n, f"dev{n}", kind, True, True, why="a reason") for n, kind in enumerate(kinds)
    }
    network = NetworkState(served, {}, {}, {"cni0": "a bridge"})
    assert [(str(each.severity), each.where, each.what) for each in kinds_of_devices(network)] == [
        ("note", "dev0", "host device: a reason"),
        ("note", "cni0", "left out: a bridge"),
        ("note", "dev1, dev2, dev3 and 1 more", "workload device: a reason"),
    ]
