# SPDX-License-Identifier: Apache-2.0
"""A node that takes part in DSR, with another node on the same uplink network."""

import pytest

from tests.bpf.dsr.tunnel import KEY, OTHER_KEY, PEER, PORT, set_keys
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6, mapped
from tests.bpf.harness.services import node_addresses


@pytest.fixture
def dsr(datapath: Datapath, node: Node) -> Datapath:
    """The node's addresses, and the other node."""
    node_addresses(datapath, node)
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, mtu=1500)
    datapath.settings(dsr_port=PORT)
    set_keys(datapath, KEY, OTHER_KEY)
    for address in PEER.values():
        datapath.maps["lb_nodes"].update(mapped(address), b"\1")
    return datapath
