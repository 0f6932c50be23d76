# SPDX-License-Identifier: Apache-2.0
"""Uplinks whose XDP programs may send to each other."""

import pytest

from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import Node
from tests.bpf.harness.packets import IPV4, IPV6
from tests.bpf.harness.services import node_addresses


@pytest.fixture
def uplinks(one_cpu: None, datapath: Datapath, node: Node) -> None:
    """The node's addresses, and two devices with XDP. One CPU, because each CPU probes
    neighbours.
    """
    write_uplinks(datapath, node)


def write_uplinks(datapath: Datapath, node: Node) -> None:
    node_addresses(datapath, node)
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node, xdp=True)
    datapath.device(node.overlay.ifindex, snat4=IPV4.overlay, snat6=IPV6.overlay, xdp=True)
