# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.attach.devices import Device
from ebpflb.dataplane.attach.links import TcDirection
from ebpflb.dataplane.attach.tc import choose, program_for
from ebpflb.dataplane.layout.enums import DeviceKind

HOST, WORKLOAD = DeviceKind.LB_DEVICE_HOST, DeviceKind.LB_DEVICE_WORKLOAD


@pytest.mark.parametrize(
    ("mode", "has_tcx", "is_foreign", "expected"),
    [
        pytest.param("auto", True, False, "tcx", id="tcx where available"),
        pytest.param("auto", True, True, "clsact", id="clsact next to others' programs"),
        pytest.param("auto", False, False, "clsact", id="clsact without tcx"),
        pytest.param("tcx", True, True, "tcx", id="tcx if configured"),
        pytest.param("clsact", True, False, "clsact", id="clsact if configured"),
    ],
)
def test_the_way_to_attach(mode, has_tcx, is_foreign, expected):
    assert choose(mode, has_tcx=has_tcx, is_foreign=is_foreign) == expected


@pytest.mark.parametrize(
    ("kind", "ethernet", "expected"),
    [
        (HOST, True, ("lb_host_ingress", "lb_host_egress")),
        (HOST, False, ("lb_l3_ingress", "lb_l3_egress")),
        (WORKLOAD, True, ("lb_pod_ingress", "lb_pod_egress")),
    ],
)
def test_the_programs_of_a_device(kind, ethernet, expected):
    device = Device(2, "x", kind, ethernet=ethernet, up=True)
    assert tuple(program_for(device, direction) for direction in TcDirection) == expected
