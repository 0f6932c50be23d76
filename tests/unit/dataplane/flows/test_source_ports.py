# SPDX-License-Identifier: Apache-2.0
"""The source ports of masqueraded flows."""

import pytest

from ebpflb.dataplane.flows import source_ports
from ebpflb.dataplane.flows.settings import write_settings
from ebpflb.dataplane.flows.source_ports import Ports, own_ports, snat_ports
from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.layout.structs import LbSettings
from tests.memory_maps import memory_maps


@pytest.mark.parametrize(
    ("taken", "expected"),
    [
        pytest.param(
            ((32768, 60999), (30000, 32767)), ((1024, 29999), (61000, 65535)), id="the defaults"
        ),
        pytest.param(
            ((10000, 65535), (30000, 32767)), ((1024, 5511), (5512, 9999)), id="one gap is halved"
        ),
        pytest.param(
            ((1024, 20000), (30000, 32767)), ((20001, 29999), (32768, 65535)), id="from the start"
        ),
        pytest.param(
            ((30000, 40000), (30500, 32767)), ((1024, 29999), (40001, 65535)), id="overlapping"
        ),
    ],
)
def test_snat_ports_avoid_what_is_taken(
    taken: tuple[Ports, Ports], expected: tuple[Ports, Ports]
) -> None:
    assert snat_ports(*taken) == list(expected)


@pytest.mark.parametrize("local", ["1024\t65535\n", "1025\t65535\n", "1500\t65535\n"])
def test_where_sockets_may_have_all_ports_they_are_shared(monkeypatch, tmp_path, local):
    path = tmp_path / "ip_local_port_range"
    path.write_text(local)
    monkeypatch.setattr(source_ports, "_LOCAL_PORTS", path)
    assert own_ports() == ((1024, 29999), (32768, 65535))
    settings = memory_maps()["lb_settings"]
    write_settings(settings, flags=SettingFlag(0), primary={})
    value = LbSettings.from_buffer_copy(settings.lookup(bytes(4)) or b"")
    assert value.flags & SettingFlag.LB_SETTING_SHARED_PORTS
