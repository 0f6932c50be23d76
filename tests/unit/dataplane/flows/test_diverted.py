# SPDX-License-Identifier: Apache-2.0
"""Which diverted flows return to the evicting tables, over maps in memory."""

import pytest

from ebpflb.dataplane.flows.diverted import bring_back
from ebpflb.dataplane.layout.enums import CtFlag, CtState, Hook
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple
from tests.memory_maps import memory_maps

SECOND = 1_000_000_000
ESTABLISHED = CtState.LB_CT_ESTABLISHED
TABLES = [("lb_conntrack", "lb_ct_short"), ("lb_ct_stream", "lb_ct_udp")]


class Diverted:
    """Flows by port, which began some seconds ago."""

    def __init__(self) -> None:
        self.maps = memory_maps()

    def put(self, table: str, port: int, ago: int = 10, **fields: int) -> None:
        known = {"created": (100 - ago) * SECOND, "hook": Hook.LB_HOOK_HOST_INGRESS}
        entry = LbConntrack(**{**known, **fields})
        self.maps[table].update(bytes(LbTuple(sport=port)), bytes(entry))

    def bring_back(self) -> bool:
        return bring_back(self.maps, lambda: 100 * SECOND)

    def ports(self, table: str) -> set[int]:
        return {LbTuple.from_buffer_copy(key).sport for key, _ in self.maps[table].items()}


@pytest.mark.parametrize(("settled", "opening"), TABLES)
def test_only_flows_that_did_not_get_established_go_back(settled: str, opening: str):
    flows = Diverted()
    flows.put(settled, 1, state=CtState.LB_CT_SYN)
    flows.put(settled, 2, state=ESTABLISHED)
    flows.put(settled, 3, other_state=ESTABLISHED)
    flows.put(settled, 4, hook=Hook.LB_HOOK_RESERVED)
    assert flows.bring_back()
    assert (flows.ports(settled), flows.ports(opening)) == ({2, 3, 4}, {1})


@pytest.mark.parametrize(("settled", "opening"), TABLES)
def test_flows_whose_answers_are_not_seen_go_back_in_any_state(settled: str, opening: str):
    flows = Diverted()
    flows.put(settled, 1, flags=CtFlag.LB_CT_DSR, state=ESTABLISHED)
    flows.put(settled, 2, flags=CtFlag.LB_CT_TUNNELED, state=ESTABLISHED)
    assert flows.bring_back()
    assert (flows.ports(settled), flows.ports(opening)) == ({2}, {1})


@pytest.mark.parametrize(("settled", "opening"), TABLES)
def test_flows_that_began_a_moment_ago_wait(settled: str, opening: str):
    flows = Diverted()
    flows.put(settled, 1, ago=1)
    flows.put(settled, 2)
    assert not flows.bring_back()
    assert (flows.ports(settled), flows.ports(opening)) == ({1}, {2})


def test_a_flow_that_has_come_meanwhile_is_not_overwritten():
    flows = Diverted()
    flows.put("lb_conntrack", 1, service=1)
    flows.put("lb_ct_short", 1, service=2)
    assert flows.bring_back()
    ((_, value),) = flows.maps["lb_ct_short"].items()
    assert LbConntrack.from_buffer_copy(value).service == 2
    assert not flows.ports("lb_conntrack")
