# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping

import pytest

from ebpflb.config.settings import load_settings
from ebpflb.dataplane.flows.conntrack import FLOW_TABLES, flow_key
from ebpflb.dataplane.flows.settings import write_settings
from ebpflb.dataplane.flows.udp_tables import flags_of_udp, move_udp_flows
from ebpflb.dataplane.layout.enums import CtState, Direction, Hook, SettingFlag
from ebpflb.dataplane.layout.structs import LbConntrack, LbTuple
from ebpflb.model.address import Protocol, parse_address
from tests.memory_maps import memory_maps

CLIENT, VIP, POD, NODE = map(
    parse_address, ("198.51.100.1", "10.96.0.1", "10.1.0.1", "2001:db8::1")
)
TCP, UDP = Protocol.TCP, Protocol.UDP
SECOND = 10**9
BOTH = SettingFlag.LB_SETTING_UDP_APART | SettingFlag.LB_SETTING_UDP_MOVED


class Old:
    """The maps of a release that has UDP flows in lb_ct_short."""

    def __init__(self) -> None:
        self.maps = memory_maps({**dict.fromkeys(FLOW_TABLES, 8), "lb_settings": 1})
        self.waits = 0

    def add(self, port: int, protocol: Protocol, *, answered: bool, seconds: int) -> None:
        there = flow_key((CLIENT, port), (VIP, 53), protocol)
        back = flow_key((POD, 5353), (CLIENT, port), protocol)
        to = flow_key((CLIENT, port), (POD, 5353), protocol)
        to_client = flow_key((VIP, 53), (CLIENT, port), protocol)
        self._put(there, to, Direction.LB_DIR_ORIGINAL, CtState.LB_CT_SYN, seconds)
        state = CtState.LB_CT_ACK if answered else CtState(0)
        self._put(back, to_client, Direction.LB_DIR_REPLY, state, 0)

    def reserve(self, port: int) -> None:
        value = LbConntrack(hook=Hook.LB_HOOK_RESERVED, last_seen=1 << 62)
        self.maps["lb_ct_short"].update(flow_key((POD, 5), (NODE, port), UDP), bytes(value))

    def _put(self, key: bytes, to: bytes, way: Direction, state: CtState, seconds: int) -> None:
        entry = LbConntrack(
            to=LbTuple.from_buffer_copy(to),
            created=SECOND,
            last_seen=(1 + seconds) * SECOND,
            direction=way,
            hook=Hook.LB_HOOK_POD_INGRESS,
            state=state,
        )
        self.maps["lb_ct_short"].update(key, bytes(entry))

    def move(self) -> None:
        def wait() -> None:
            assert flags_of_udp(self.maps["lb_settings"]) == SettingFlag.LB_SETTING_UDP_APART
            self.waits += 1

        move_udp_flows(self.maps, wait)

    @property
    def counts(self) -> Mapping[str, int]:
        found = {name: len(list(self.maps[name].items())) for name in FLOW_TABLES}
        return {name: count for name, count in found.items() if count}


@pytest.mark.parametrize(
    ("answered", "seconds", "table"),
    [(True, 3, "lb_ct_stream"), (True, 2, "lb_ct_udp"), (False, 3, "lb_ct_udp")],
)
def test_a_udp_flow_moves_to_where_it_belongs(answered, seconds, table):
    old = Old()
    old.add(1, UDP, answered=answered, seconds=seconds)
    old.move()
    assert old.counts == {table: 2}
    states = {value[LbConntrack.state.offset] for _, value in old.maps[table].items()}
    assert all(
        bool(each & CtState.LB_CT_ESTABLISHED) == (answered and seconds > 2) for each in states
    )


def test_tcp_stays_and_what_is_reserved_is_not_evicted():
    old = Old()
    old.add(1, TCP, answered=True, seconds=3)
    old.reserve(1999)
    old.move()
    assert old.counts == {"lb_ct_short": 2, "lb_ct_stream": 1}


def test_it_happens_once_and_the_flags_stay():
    old = Old()
    old.move()
    old.add(1, UDP, answered=True, seconds=3)
    options, flag = load_settings({"node-name": "a"}, {}), SettingFlag.LB_SETTING_LOCALHOST
    write_settings(old.maps["lb_settings"], options, flags=flag, primary={})
    old.move()
    assert (old.waits, old.counts) == (1, {"lb_ct_short": 2})
    assert flags_of_udp(old.maps["lb_settings"]) == BOTH


def test_a_flow_that_has_begun_anew_meanwhile_is_not_overwritten():
    old = Old()
    old.add(1, UDP, answered=False, seconds=0)
    key = flow_key((CLIENT, 1), (VIP, 53), UDP)
    newer = bytes(LbConntrack(created=7))
    old.maps["lb_ct_udp"].update(key, newer)
    old.move()
    assert old.maps["lb_ct_udp"].lookup(key) == newer
