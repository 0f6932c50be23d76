# SPDX-License-Identifier: Apache-2.0
"""NodePorts at the node's loopback addresses: a flag for each family, and host processes only."""

from ebpflb.dataplane.layout.enums import NetnsFlag, SettingFlag
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind
from tests.bpf.harness.services import node_port, remote_backend

ADDRESSES = {IPV4: ("127.0.0.1", "127.9.9.9", "0.0.0.0"), IPV6: ("::1", "::")}
FLAGS = {IPV4: SettingFlag.LB_SETTING_LOCALHOST, IPV6: SettingFlag.LB_SETTING_LOCALHOST6}


def test_a_family_has_node_ports_at_localhost_by_its_own_flag(
    datapath: Datapath, asker: Asker, kind: Kind
):
    backend, index = remote_backend(datapath, kind)
    port = node_port(datapath, kind, [index]).port
    for flag in FLAGS.values():
        datapath.settings(flags=flag)
        for address in ADDRESSES[kind.net]:
            own = End(address, port)
            say_who_asks(datapath.maps, NetnsFlag.LB_NETNS_HOST)
            found = asker.connect(own, kind.proto)
            assert (found == backend) is (flag == FLAGS[kind.net]), address
            say_who_asks(datapath.maps, NetnsFlag.LB_NETNS_COVERED)
            assert asker.connect(own, kind.proto) != backend
