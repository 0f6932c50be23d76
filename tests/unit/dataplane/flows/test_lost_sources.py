# SPDX-License-Identifier: Apache-2.0
"""Which flows are deleted when the node loses the address that masquerades them."""

import pytest

from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key
from ebpflb.dataplane.flows.lost_sources import forget_masqueraded
from ebpflb.dataplane.layout.enums import CtFlag, Direction
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple
from ebpflb.model.address import Protocol, parse_address
from tests.memory_maps import memory_maps

CLIENT, NODE, LOST, KEPT, POD = map(
    parse_address, ("198.51.100.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "10.1.0.1")
)
TCP, UDP = Protocol.TCP, Protocol.UDP
SNAT = CtFlag.LB_CT_SNAT


def add(maps, table, protocol, source, flags):
    """Both entries of a flow from CLIENT to NODE, masqueraded with `source`."""
    there = flow_key((CLIENT, 1), (NODE, 30053), protocol)
    to = flow_key((source, 2), (POD, 53), protocol)
    back = flow_key((POD, 53), (source, 2), protocol)
    to_client = flow_key((NODE, 30053), (CLIENT, 1), protocol)
    for key, target, way in (
        (there, to, Direction.LB_DIR_ORIGINAL),
        (back, to_client, Direction.LB_DIR_REPLY),
    ):
        entry = LbConntrack(to=LbTuple.from_buffer_copy(target), direction=way, flags=flags)
        maps[table].update(key, bytes(entry))


@pytest.mark.parametrize(
    ("table", "protocol", "source", "flags", "count"),
    [
        pytest.param("lb_ct_udp", UDP, LOST, SNAT, 1, id="lost"),
        pytest.param("lb_ct_stream", UDP, LOST, SNAT, 1, id="stream"),
        pytest.param("lb_ct_udp", UDP, KEPT, SNAT, 0, id="another address"),
        pytest.param("lb_ct_udp", UDP, LOST, SNAT | CtFlag.LB_CT_HAIRPIN, 0, id="hairpin"),
        pytest.param("lb_ct_udp", UDP, LOST, SNAT | CtFlag.LB_CT_TO_POD, 0, id="a pod here"),
        pytest.param("lb_ct_udp", UDP, LOST, CtFlag(0), 0, id="the client's own address"),
        pytest.param("lb_ct_short", TCP, LOST, SNAT, 0, id="TCP"),
    ],
)
def test_udp_flows_that_leave_the_node_with_it_are_forgotten(table, protocol, source, flags, count):
    maps = memory_maps(dict.fromkeys(FLOW_TABLES, 8))
    add(maps, table, protocol, source, flags)
    assert forget_masqueraded(maps, {LOST}) == count
    assert len(list(maps[table].items())) == (0 if count else 2)
