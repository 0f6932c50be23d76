# SPDX-License-Identifier: Apache-2.0
"""The state of a flow, which two CPUs may write at once."""

import pytest

from ebpflb.dataplane.layout.enums import CtState
from ebpflb.dataplane.layout.structs import LbConntrack
from tests.bpf.flows.test_conntrack import ACK, CLOSED, ESTABLISHED, SYN, Flow
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.packets import Kind
from tests.bpf.harness.services import CLIENT_PORT, cluster_ip, remote_backend


@pytest.fixture
def flow(datapath: Datapath, tcp: Kind) -> Flow:
    frontend = cluster_ip(datapath, tcp, [remote_backend(datapath, tcp)[1]])
    return Flow(datapath, tcp, frontend, CLIENT_PORT)


def test_what_an_ended_flow_left_in_the_wrong_table_does_not_stand_before_a_new_one(flow: Flow):
    """As a bit that was lost left it: closed, and not established."""
    flow.establish()
    table = flow.datapath.maps["lb_conntrack"]
    for key, value in list(table.items()):
        entry = LbConntrack.from_buffer_copy(value)
        entry.state, entry.peer_state = entry.state & ~ESTABLISHED, CLOSED
        table.update(key, bytes(entry))
    flow.establish()
    assert flow.is_established()
    assert not any(state & CLOSED for state in flow.states())


def test_each_direction_writes_its_own_byte(flow: Flow):
    flow.establish()
    flow.request("FA")
    flow.reply("FA")
    entry = flow.datapath.entry(flow.pod, flow.frontend, flow.kind.proto)
    assert CtState(entry.state) == SYN | ACK | ESTABLISHED
    assert CtState(entry.peer_state) == CtState.LB_CT_PEER_FIN | CLOSED
