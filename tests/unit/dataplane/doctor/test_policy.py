# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.attach.devices import NetworkState
from ebpflb.dataplane.attach.forwarding import PolicyEngine
from ebpflb.dataplane.doctor.finding import Severity
from ebpflb.dataplane.doctor.node import check_policy
from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.layout.structs import LbSettings

CALICO = PolicyEngine("Calico", "device cali*")
VIA_STACK = LbSettings(flags=SettingFlag.LB_SETTING_VIA_STACK)


@pytest.mark.parametrize(
    ("engine", "settings", "severity", "text"),
    [
        (None, LbSettings(), Severity.OK, "redirected"),
        (None, VIA_STACK, Severity.OK, "who enforces policies sees"),
        (CALICO, VIA_STACK, Severity.OK, "Calico sees"),
        (CALICO, LbSettings(), Severity.WARNING, "redirected, bypassing Calico"),
        (CALICO, None, Severity.WARNING, "device cali*"),
    ],
)
def test_who_enforces_policies_must_see_the_packets(engine, settings, severity, text):
    (found,) = check_policy(NetworkState({}, {}, {}, policy_engine=engine), settings)
    assert found.severity is severity
    assert text in found.what


@pytest.mark.parametrize(
    ("settings", "severity"), [(VIA_STACK, Severity.WARNING), (LbSettings(), Severity.OK)]
)
def test_the_kernel_must_not_route_what_cilium_masquerades(settings, severity):
    network = NetworkState({}, {}, {}, left_out={"cilium_host": "of the CNI"})
    (found,) = check_policy(network, settings)
    assert found.severity is severity
