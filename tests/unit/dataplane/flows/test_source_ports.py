# SPDX-License-Identifier: Apache-2.0
"""The source ports of masqueraded flows."""

import pytest

from ebpflb.config.settings import load_settings
from ebpflb.dataplane.flows import source_ports
from ebpflb.dataplane.flows.settings import write_settings
from ebpflb.dataplane.flows.source_ports import Ports, own_ports, snat_ports
from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.layout.structs import LbSettings
from tests.memory_maps import memory_maps

NODE_PORTS = (30000, 32767)


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
    assert own_ports(NODE_PORTS) == ((1024, 29999), (32768, 65535))
    assert written(NODE_PORTS).flags & SettingFlag.LB_SETTING_SHARED_PORTS


@pytest.mark.parametrize(
    ("node_ports", "expected"),
    [
        pytest.param((20000, 22767), [(1024, 19999), (22768, 32767)], id="another range"),
        pytest.param((80, 40000), [(61000, 63267), (63268, 65535)], id="a large one"),
        pytest.param((80, 64535), [(64536, 65035), (65036, 65535)], id="the largest one"),
    ],
)
def test_programs_get_no_node_port_as_a_source_port(monkeypatch, tmp_path, node_ports, expected):
    path = tmp_path / "ip_local_port_range"
    path.write_text("32768\t60999\n")
    monkeypatch.setattr(source_ports, "_LOCAL_PORTS", path)
    found = written(node_ports).snat_ports
    assert [(each.first, each.last) for each in found] == expected


def written(node_ports: Ports) -> LbSettings:
    settings = memory_maps()["lb_settings"]
    text = "{}-{}".format(*node_ports)
    options = load_settings({"node-name": "a", "service-node-port-range": text}, {})
    write_settings(settings, options, flags=SettingFlag(0), primary={})
    return LbSettings.from_buffer_copy(settings.lookup(bytes(4)) or b"")
