# SPDX-License-Identifier: Apache-2.0
"""A small cluster on one machine: nodes, pods and a client are network namespaces.

    from ebpflb.lab import Lab, LabConfig

    with Lab.up(LabConfig(name="demo", nodes=2, pods=3)) as lab:
        lab.node("node1").exec(["ip", "route"])
        result = lab.client.load(lab.node("node1").ipv4, 30080, count=100)

layout.py says who has which name and address, network.py how that becomes ip(8) commands, and
cluster.py builds it and takes it down.
"""

from ebpflb.lab.cluster import Lab
from ebpflb.lab.layout import Cni, LabConfig, Stack
from ebpflb.lab.load import LoadOptions, LoadResult
from ebpflb.lab.member import LabNode, Member

__all__ = ["Cni", "Lab", "LabConfig", "LabNode", "LoadOptions", "LoadResult", "Member", "Stack"]
